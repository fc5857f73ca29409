"""A name to import: SGLang asks for IPython when it starts and uses it only in notebooks."""
