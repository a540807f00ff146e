"""The public names of `calibrant.decision` and where they live; `__init__.py` reads this list."""

from calibrant.decision.base import Decision as Decision
from calibrant.decision.base import Share as Share
from calibrant.decision.cost import CostDecision as CostDecision
from calibrant.decision.decide import decide as decide
from calibrant.decision.decide import decide_by as decide_by
from calibrant.decision.decision_file import load_decision as load_decision
from calibrant.decision.decision_file import save_decision as save_decision
from calibrant.decision.grouped import GroupedDecision as GroupedDecision
from calibrant.decision.risk import RiskDecision as RiskDecision
from calibrant.decision.sets import SetDecision as SetDecision
