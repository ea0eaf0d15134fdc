#!/usr/bin/env bash
# All that only a GPU can tell, in at most 240 seconds:
#
#   gpu/check.sh [--device cuda|cpu] [--out DIR] [--peers FILE.py]
#
# It runs from a source tree that is not installed: beside torch, Triton and the scientific packages that come with
# them it needs simpy alone. On a CPU it is a dry run: small shapes, and not a word about how fast anything is.
# Every phase has a deadline of its own, and all that it said is in DIR when it ends. The order is such that a run that
# is cut off has told what matters most. FILE.py brings more attention kernels to compare with (gpu/benchmark/peers.py).
# Exit code: 0; 1 if a phase failed or was cut off; 2 for a mistake in the options.
set -u

limit_s=240
for_the_table_s=8

device=cuda
out=
peers=()
while [ $# -gt 0 ]; do
    case $1 in
        --device) device=${2:-} ;;
        --out) out=${2:-} ;;
        --peers) peers=(--peers "$(realpath -m "${2:-.}")") ;;
        *) echo "usage: gpu/check.sh [--device cuda|cpu] [--out DIR] [--peers FILE.py]" >&2; exit 2 ;;
    esac
    [ $# -ge 2 ] || { echo "$1: needs a value" >&2; exit 2; }
    shift 2
done
case $device in cuda | cpu) ;; *) echo "--device: expected cuda or cpu, got '$device'" >&2; exit 2 ;; esac
out=${out:-runs/gpu-check-$(date -u +%Y%m%d-%H%M%S)}
[ ! -e "$out" ] || { echo "--out $out: already exists; name a new folder" >&2; exit 2; }
mkdir -p "$out" || exit 2
out=$(realpath "$out")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
for room in engine workloads sim gpu experiments; do # some archives lose links, or keep their targets as text
    [ -d "kvtwin/$room" ] || ln -sfn "../$room" "kvtwin/$room" || exit 2
done

python=${PYTHON:-python3}
kvtwin=("$python" -m kvtwin.experiments.command_line)
results=$out/results.jsonl
failed=0

# phase NAME DEADLINE COMMAND...: run it, keep what it says in DIR/NAME.txt, note how it ended.
phase() {
    local name=$1 deadline_s=$2 left_s=$((limit_s - for_the_table_s - SECONDS)) started_s=$SECONDS status ended
    shift 2
    if [ $left_s -lt $deadline_s ]; then deadline_s=$left_s; fi
    if [ $deadline_s -le 0 ]; then
        status=124
    else
        echo "== $name, at most $deadline_s s"
        PYTHONUNBUFFERED=1 timeout --kill-after=1 $deadline_s "$@" 2>&1 | tee "$out/$name.txt"
        status=${PIPESTATUS[0]}
    fi
    case $status in
        0) ended=done ;;
        124 | 137) ended="cut off" failed=1 ;;
        *) ended="failed ($status)" failed=1 ;;
    esac
    printf '{"phase": "phases", "case": "%s", "ended": "%s", "s": %d}\n' "$name" "$ended" $((SECONDS - started_s)) >> "$results"
}

measure=(--device "$device" --results "$results")
if [ "$device" = cpu ]; then
    small=tiny large=tiny
    steps=(--max-model-len 256 --max-num-seqs 4 --max-num-batched-tokens 64 --limit-s 15)
    load=(--limit 12 --length-scale 0.1 --max-model-len 304 --num-gpu-blocks-override 20 --max-num-seqs 4)
    load+=(--max-num-batched-tokens 64 --request-rate inf)
else
    small=Llama-3.2-1B large=Llama-3.1-8B
    steps=(--max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 2048 --limit-s 15)
    load=(--limit 60 --max-model-len 4096 --num-gpu-blocks-override 500 --max-num-seqs 64)
    load+=(--max-num-batched-tokens 2048 --request-rate inf)
fi

# Compiling takes many cores, and measuring none: the kernels of later phases are compiled meanwhile.
if [ "$device" = cuda ]; then
    timeout 60 "$python" -m tests.gpu.warm_up > "$out/warm-up.txt" 2>&1 &
fi

phase ceilings 25 "$python" -m kvtwin.gpu.benchmark.ceilings "${measure[@]}"
phase correctness 50 "$python" -m tests.gpu.on_device "${measure[@]}"
phase attention 60 "$python" -m kvtwin.gpu.benchmark.attention "${measure[@]}" "${peers[@]}"
phase calibrate 45 "${kvtwin[@]}" calibrate --device "$device" --model "$small" "${steps[@]}" --out "$out/step-times.yaml"
step_time=()
[ ! -e "$out/step-times.yaml" ] || step_time=(--step-time "$out/step-times.yaml")
phase validate-small 60 "${kvtwin[@]}" validate demo --device "$device" --model "$small" "${load[@]}" \
    "${step_time[@]}" --out "$out/validate-small"
phase validate-large 75 "${kvtwin[@]}" validate demo --device "$device" --model "$large" "${load[@]}" \
    --out "$out/validate-large"

"$python" -m kvtwin.gpu.benchmark.table "$out" || failed=1
exit $failed
