"""A Diagnosis as text, Markdown or JSON. Pure: nothing here prints, reads files or asks the machine."""
