"""Token files of other projects made into a shard set, so that old data can be validated, audited and exported too.

`import_set.import_set` is the whole of it.
"""
