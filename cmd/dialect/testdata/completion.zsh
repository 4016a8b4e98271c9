#compdef torchrun
# zsh completion for torchrun, made by muster
_arguments -s \
  '--nnodes[Number of nodes, or the least and the most of them\: then nodes may come and go while the job runs]:nnodes:' \
  '--nproc-per-node[Workers on each node\: a number, one per accelerator (gpu), one per CPU (cpu), or one per accelerator where there is one and else per CPU (auto)]:nproc_per_node:(auto cpu gpu)' \
  '--node-rank[Rank of this node with the static rendezvous, from 0; the store is on node 0]:node_rank:' \
  '--standalone[One node with a store of its own on a free port; --rdzv-backend, --rdzv-endpoint and --rdzv-id are ignored]' \
  '--rdzv-backend[How agents meet\: static (fixed node ranks), c10d (through a store on one of the nodes, which agents of torchrun may share), muster (such a store for muster only), etcd (v3; etcd-v2 and etcd-v3 mean the same, and agents of torchrun speak something else there)]:rdzv_backend:(static c10d muster etcd)' \
  '--rdzv-endpoint[Where the nodes meet, the same on all of them\: port 29400 with c10d and muster, 2379 with etcd; static needs the port]:rdzv_endpoint:' \
  '--rdzv-id[Name of the job, the same on all its nodes, seen by workers as TORCHELASTIC_RUN_ID]:rdzv_id:' \
  '--rdzv-conf[Settings of the rendezvous, such as join_timeout=600 (seconds)]:rdzv_conf:' \
  '--master-addr[With the static rendezvous\: address of node 0, where the store listens; on one node only with --master-port]:master_addr:' \
  '--master-port[With the static rendezvous\: the store'\''s port]:master_port:' \
  '--local-addr[Address by which the other nodes reach this one, on one node what workers see as MASTER_ADDR]:local_addr:' \
  '--module[The script is the name of a Python module, as in python -m]' \
  '-m[The script is the name of a Python module, as in python -m]' \
  '--no-python[The script is a program of its own and is run without Python]' \
  '--run-path[Run the script with Python'\''s runpy.run_path in a child that multiprocessing prepared]' \
  '--start-method[With --run-path\: multiprocessing'\''s start method]:start_method:(spawn fork forkserver)' \
  '--role[Name of the workers'\'' role, seen by them as ROLE_NAME]:role:' \
  '--virtual-local-rank[LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES has only the worker'\''s own device]' \
  '--numa-binding[Bind each worker to CPUs near the accelerator of its local rank]:numa_binding:(node socket exclusive core-complex)' \
  '--max-restarts[How often the workers are started anew after a failure]:max_restarts:' \
  '--monitor-interval[How often torchrun looks at its workers]:monitor_interval:' \
  '--signals-to-handle[Signals that end the job\: they are forwarded to the workers, and what is left after the shutdown timeout is killed]:signals_to_handle:' \
  '--shutdown-timeout[Time between the first signal to the workers and SIGKILL]:shutdown_timeout:' \
  '--log-dir[Where the directory of this run is made]:directory:_files -/' \
  '--redirects[Streams that go to files and not to the console\: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0\:3,1\:2]:redirects:' \
  '-r[Streams that go to files and not to the console\: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank, as in 0\:3,1\:2]:redirects:' \
  '--tee[Streams that go to files and to the console; SPEC as for --redirects]:tee:' \
  '-t[Streams that go to files and to the console; SPEC as for --redirects]:tee:' \
  '--log-line-prefix-template[What stands in front of each line of --tee; {role_name}, {local_rank}, {rank} and {hostname} are replaced]:log_line_prefix_template:' \
  '--local-ranks-filter[Local ranks whose output is shown on the console, as in 0,1]:local_ranks_filter:' \
  '--duplicate-stdout-filters[Lines of --tee with one of these words also go to filtered_stdout.log; two commas stand for one in a word]:duplicate_stdout_filters:' \
  '--duplicate-stderr-filters[Lines of --tee with one of these words also go to filtered_stderr.log; two commas stand for one in a word]:duplicate_stderr_filters:' \
  '--logs-specs[A Python class that arranges logs]:logs_specs:' \
  '--event-log-handler[Where torchelastic'\''s event records go\: nowhere, or to standard error as JSON]:event_log_handler:(null console)' \
  '--print-completion[Print a completion script and exit]:print_completion:(bash zsh tcsh)' \
  '--help[Print this text and exit]' \
  '-h[Print this text and exit]' \
  '1:training_script:_files' \
  '*::argument:_files'
