"""`tokenmill report`: a page and a data card that show a set; `write.write_report` is the entry point.

`audited` reads or makes the audit; `shown_documents` reads the tokens; `plots` draws the pictures; `visible_text`
escapes foreign text; `render` reads manifest and recipe, and fills the templates.
"""
