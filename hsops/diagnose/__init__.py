"""Why does it not answer? Probes on the host give evidence, pure rules give a verdict.

``diagnose(agent, run)`` looks and judges; ``judge(evidence)`` only judges.
"""

from hsops.diagnose.judge import judge
from hsops.diagnose.live import diagnose
from hsops.diagnose.verdict import Finding, Verdict

__all__ = ["Finding", "Verdict", "diagnose", "judge"]
