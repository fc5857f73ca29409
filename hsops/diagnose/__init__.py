"""Why does it not answer? Probes on the host give evidence, pure rules give a verdict.

``live.probe`` looks, ``reading`` makes evidence of what it saw, ``judge(evidence)`` concludes.
"""

from hsops.diagnose.judge import judge
from hsops.diagnose.verdict import Finding, Verdict

__all__ = ["Finding", "Verdict", "judge"]
