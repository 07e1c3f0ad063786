from shoal.samples.deal import Deal as Deal
from shoal.samples.ledger import Batch as Batch
from shoal.samples.ledger import Ledger as Ledger
from shoal.samples.ledger import Rule as Rule
from shoal.samples.own_batches import OwnBatches as OwnBatches
from shoal.samples.own_batches import Progress as Progress
from shoal.samples.spans import Spans as Spans
from shoal.samples.spans import length as length
