"""`tokenmill report`: a page and a data card that show a set; `write.write_report` is the entry point.

`shown_documents` reads the tokens; `visible_text` escapes foreign text; `render` reads manifest and recipe, and fills
the templates.
"""
