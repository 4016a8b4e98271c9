# bash completion for torchrun, made by muster
_muster_torchrun() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  COMPREPLY=()
  case $prev in
    --nproc-per-node) COMPREPLY=($(compgen -W 'auto cpu gpu' -- "$cur")); return ;;
    --rdzv-backend) COMPREPLY=($(compgen -W 'static c10d muster etcd' -- "$cur")); return ;;
    --start-method) COMPREPLY=($(compgen -W 'spawn fork forkserver' -- "$cur")); return ;;
    --numa-binding) COMPREPLY=($(compgen -W 'node socket exclusive core-complex' -- "$cur")); return ;;
    --event-log-handler) COMPREPLY=($(compgen -W 'null console' -- "$cur")); return ;;
    --print-completion) COMPREPLY=($(compgen -W 'bash zsh tcsh' -- "$cur")); return ;;
  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W '--duplicate-stderr-filters --duplicate-stdout-filters --event-log-handler --help --local-addr --local-ranks-filter --log-dir --log-line-prefix-template --logs-specs --master-addr --master-port --max-restarts --module --monitor-interval --nnodes --no-python --node-rank --nproc-per-node --numa-binding --print-completion --rdzv-backend --rdzv-conf --rdzv-endpoint --rdzv-id --redirects --role --run-path --shutdown-timeout --signals-to-handle --standalone --start-method --tee --virtual-local-rank -h -m -r -t' -- "$cur"))
  else
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}
complete -o filenames -F _muster_torchrun torchrun
