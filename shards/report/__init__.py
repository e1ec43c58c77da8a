"""`tokenmill report`: a page and a dataset card that show a set; `write.write_report` is the entry point.

`render` reads manifest and recipe, fills the templates, and escapes foreign text.
"""
