"""A recipe's own Python functions: `modules` reads them, `process` runs them in processes of their own.

`guard` and `child` are the programs of these processes: they import nothing of Tokenmill.
"""
