"""Why tests of torch's fail with the backend "shoal": what each of them asks for instead."""

MONITORED = (
    "`dist.monitored_barrier` refuses every backend that is not called gloo. With shoal, `barrier`"
    " itself ends at its timeout with an error that names the ranks it waits for."
)

FAILURES: dict[str, str] = {
    "test_monitored_barrier_failure_order": MONITORED,
    "test_monitored_barrier_gloo": MONITORED,
    "test_monitored_barrier_gloo_rank_0_timeout": MONITORED,
    "test_monitored_barrier_gloo_subgroup": MONITORED,
    "test_monitored_barrier_wait_all_ranks": MONITORED,
}
