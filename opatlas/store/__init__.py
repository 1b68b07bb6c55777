"""The files of a database: CSVs, journals, histories, manifests, locks, op_mapping.yaml."""
