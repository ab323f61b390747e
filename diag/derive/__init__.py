"""Tables that SQL should not compute: one pure function a file (NEEDS, GIVES, derive). Nothing to register."""
