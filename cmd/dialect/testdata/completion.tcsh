# tcsh completion for torchrun, made by muster
complete torchrun \
  'n/--nproc-per-node/(auto cpu gpu)/' \
  'n/--rdzv-backend/(static c10d muster etcd)/' \
  'n/--start-method/(spawn fork forkserver)/' \
  'n/--numa-binding/(node socket exclusive core-complex)/' \
  'n/--event-log-handler/(null console)/' \
  'n/--print-completion/(bash zsh tcsh)/' \
  'c/--/(duplicate-stderr-filters duplicate-stdout-filters event-log-handler help local-addr local-ranks-filter log-dir log-line-prefix-template logs-specs master-addr master-port max-restarts module monitor-interval nnodes no-python node-rank nproc-per-node numa-binding print-completion rdzv-backend rdzv-conf rdzv-endpoint rdzv-id redirects role run-path shutdown-timeout signals-to-handle standalone start-method tee virtual-local-rank)/' \
  'c/-/(h m r t)/' \
  'p/*/f/'
