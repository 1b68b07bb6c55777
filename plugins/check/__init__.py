"""`opatlas check DB`: the checks of `database/checks` as cases of pytest."""
