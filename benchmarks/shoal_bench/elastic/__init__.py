"""Jobs that outlive their workers, measured beside other libraries: `shoal bench elastic`.

A job of real processes is started, workers are killed or stopped and come back, and what each
worker wrote down of its steps says what that cost the others. `contender` says what a library is
asked for, `job` owns the processes, and each section is one file.
"""
