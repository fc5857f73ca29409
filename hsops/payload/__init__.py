"""What is shipped into SGLang's site-packages. Nothing here is imported by hsops itself."""
