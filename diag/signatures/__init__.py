"""What lines and codes mean that many incidents have in common: tables of errors, Xids and versions with known defects, as data."""
