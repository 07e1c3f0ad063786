"""Who takes part in a job: a core that other rooms enter by `View`."""

from shoal.membership.view import View as View
