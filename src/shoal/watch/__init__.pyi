from shoal.watch.metrics import LARGEST_PORT as LARGEST_PORT
from shoal.watch.metrics import MetricsServer as MetricsServer
from shoal.watch.metrics import require_client as require_client
from shoal.watch.metrics import serve_if_asked as serve_if_asked
from shoal.watch.remark import Remark as Remark
from shoal.watch.remark import remarks as remarks
from shoal.watch.slow_requests import SlowWorker as SlowWorker
from shoal.watch.slow_requests import slow_worker as slow_worker
