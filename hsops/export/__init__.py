"""Dumps as the data sets that trainers read: SpecForge's offline features, speculators' (and vLLM's) safetensors."""
