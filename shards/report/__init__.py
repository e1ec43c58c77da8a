"""`tokenmill report`: a page and a dataset card that show a set; `write.write_report` is the entry point.

`render` reads manifest and recipe, and fills the templates; `visible_text` escapes foreign text.
"""
