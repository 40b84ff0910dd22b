"""Search spaces: which plans exist for some ops at a shape on a device.

space = SearchSpace.load(workload, ops, shape, device)      search_spaces/<workload>.yaml, or a file of your own
choices, plan = space.walk(pick)                            pick one option of each question
space.to_plan(choices), space.to_choices(plan)              and back

source      YAML with line numbers, refusing what is not plain
file        the parsed and checked file
groups      fields that are chosen together, and rules
dimensions  one class per kind of choice; also `fusion_dimension`, `edge_dimensions`
space       the walk over them
subspace    a part of a space: some choices free, the rest as one plan has them
"""

from mktune.space.dimensions import Question, nearest, question_stem
from mktune.space.space import Choices, SearchSpace, Size
from mktune.space.subspace import Free, SubSpace, choose_free

__all__ = ["Choices", "Free", "Question", "SearchSpace", "Size", "SubSpace", "choose_free", "nearest", "question_stem"]
