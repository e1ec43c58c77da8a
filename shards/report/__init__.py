"""`tokenmill report`: a page and a data card that show a set; `write.write_report` is the entry point.

`facts` reads the manifest and the recipe; `audited` reads or makes the audit; `vocabulary`, `document_lengths`,
`shown_documents` and `other_tokenizer` read the tokens; `chart` and `plots` draw the pictures; `text` escapes foreign
text; `render` fills the templates.
"""
