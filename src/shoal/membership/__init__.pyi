from shoal.membership.membership import Change as Change
from shoal.membership.membership import Decision as Decision
from shoal.membership.membership import Kind as Kind
from shoal.membership.membership import Membership as Membership
from shoal.membership.membership import Proposal as Proposal
from shoal.membership.membership import Refusal as Refusal
from shoal.membership.membership import Report as Report
from shoal.membership.view import View as View
