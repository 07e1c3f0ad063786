"""The strategies of Shoal: what each is, and its course, which the runtime and the simulator share.

A core: decisions only. Other rooms enter by the names below, by the acts of courses
(`strategies.acts`) and by the machine of a server's shard (`strategies.shard`).
"""

from shoal.strategies.ad_psgd import ADPSGD as ADPSGD
from shoal.strategies.all_reduce import AllReduce as AllReduce
from shoal.strategies.all_reduce import GradientOverlap as GradientOverlap
from shoal.strategies.course import AbstractCourse as AbstractCourse
from shoal.strategies.course import Setting as Setting
from shoal.strategies.definition import AbstractDefinition as AbstractDefinition
from shoal.strategies.definition import Averaged as Averaged
from shoal.strategies.definition import Family as Family
from shoal.strategies.definitions import STRATEGIES as STRATEGIES
from shoal.strategies.definitions import check_pulls as check_pulls
from shoal.strategies.definitions import check_strategy as check_strategy
from shoal.strategies.definitions import check_wire as check_wire
from shoal.strategies.definitions import make_strategy as make_strategy
from shoal.strategies.definitions import refuse_options as refuse_options
from shoal.strategies.definitions import spelled as spelled
from shoal.strategies.definitions import usual as usual
from shoal.strategies.definitions import worth_trying as worth_trying
from shoal.strategies.ds_sync import DSSync as DSSync
from shoal.strategies.generated import GeneratedAveraging as GeneratedAveraging
from shoal.strategies.hierarchical_sgd import HierarchicalSGD as HierarchicalSGD
from shoal.strategies.local_sgd import LocalSGD as LocalSGD
from shoal.strategies.parameter_server import ParameterServer as ParameterServer
from shoal.strategies.periodic import AveragingOverlap as AveragingOverlap
from shoal.strategies.periodic import PeriodicAveraging as PeriodicAveraging
from shoal.strategies.ripples import Ripples as Ripples
from shoal.strategies.ripples import RipplesRandom as RipplesRandom
from shoal.strategies.ripples_static import RipplesStatic as RipplesStatic
from shoal.strategies.scheduled import ScheduledAveraging as ScheduledAveraging
