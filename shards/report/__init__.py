"""`python -m shards report`: a page and a data card that show a set; `write.write_report` is the way in.

`facts` what the manifest and the recipe say; `audited` the audit's findings, read or made; `vocabulary`, `documents`,
`compare` what the tokens add; `chart`, `plots` the pictures; `text` how foreign text is made harmless; `render` the
templates.
"""
