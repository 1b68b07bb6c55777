"""Theory rows: kernel calls that follow from the architectures of models, for databases with few captured rows."""
