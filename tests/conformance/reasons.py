"""Why tests of torch's cannot reach the backend "shoal", though it has what they ask for."""

REFUSED: dict[str, str] = {
    r"monitored_barrier is only implemented for GLOO backend": (
        "`dist.monitored_barrier` compares the group's backend name with gloo's and raises this"
        " before it calls the group, so no backend of another name can be reached by it (torch's"
        " `distributed_c10d.py`). The process group has the method that it would call:"
        ' `dist.group.WORLD.monitored_barrier(timeout, wait_all_ranks)`. The column "by method"'
        " says what becomes of the same test once that comparison is left out."
    ),
}
"""What torch says when it refuses a backend for its name, as a regular expression, and why."""
