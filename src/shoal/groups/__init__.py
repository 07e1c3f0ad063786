"""The groups room of Shoal."""

from shoal.groups.generator import GroupGenerator as GroupGenerator
from shoal.groups.generator_config import GeneratorConfig as GeneratorConfig
from shoal.groups.generator_events import Assignment as Assignment
from shoal.groups.generator_events import AssignmentReason as AssignmentReason
from shoal.groups.generator_events import GeneratorCounters as GeneratorCounters
from shoal.groups.generator_events import GeneratorState as GeneratorState
from shoal.groups.server_clock import ClockAdvance as ClockAdvance
from shoal.groups.server_clock import ServerClock as ServerClock
from shoal.groups.server_clock import Update as Update
