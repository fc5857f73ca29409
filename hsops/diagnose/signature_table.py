"""The rows of ``signatures``, in order: the first whose words stand in the log wins, so precise causes come first.

Sources: SGLang 0.5.4-0.5.23, recorded runs, and public issue threads (named in each row).
"""

from __future__ import annotations

from hsops.diagnose.signatures_machine import MACHINE
from hsops.diagnose.signatures_software import SOFTWARE

SIGNATURES = (*SOFTWARE, *MACHINE)
