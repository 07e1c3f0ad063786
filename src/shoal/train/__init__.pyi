from shoal.train.checkpoints import Saving as Saving
from shoal.train.checkpoints import load_checkpoint as load_checkpoint
from shoal.train.checkpoints import save_checkpoint as save_checkpoint
from shoal.train.elastic_sampler import ElasticSampler as ElasticSampler
from shoal.train.flat_parameters import FlatParameters as FlatParameters
from shoal.train.forward_order import ForwardOrder as ForwardOrder
from shoal.train.optimizer import DistributedOptimizer as DistributedOptimizer
