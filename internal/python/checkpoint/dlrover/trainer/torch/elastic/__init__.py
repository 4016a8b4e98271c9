from dlrover import behind

__path__.extend(behind(__name__))
