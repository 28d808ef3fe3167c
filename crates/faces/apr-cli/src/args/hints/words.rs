//! The words of other tools, and what serves here.

/// Options of llama.cpp, hf, ffmpeg and others, and what does the same; the name is the one that
/// was typed.
pub(super) const OPTIONS: [(&[&str], &str); 28] = [
    (
        &[
            "--outfile",
            "--out",
            "--out-file",
            "--output-file",
            "--outdir",
            "--output-dir",
            "--dest",
            "--local-dir",
        ],
        "-o PATH (--output) names the output",
    ),
    (
        &["--outtype", "--dtype", "--torch-dtype", "--fp16", "--f16", "--bf16", "--half"],
        "--precision f16 casts floats (bf16, f32 ...); `apr quantize --type q8_0` and --quantize \
         make blocks",
    ),
    (
        &["--target", "--output-format", "--to-format"],
        "the output's extension sets the format; otherwise pass --format",
    ),
    (&["--input", "-i", "--model", "-m", "--in"], "the model needs no option: `apr COMMAND MODEL`"),
    (
        &["--qtype", "--quant", "--quantization-type", "--bits", "--nbits", "--ftype", "--type"],
        "--quantize TYPE, or `apr quantize --type TYPE`",
    ),
    (
        &["--force", "--yes", "-y", "--clobber", "--replace"],
        "-f (--overwrite) overwrites an existing output",
    ),
    (&["--max-shard-size", "--split-max-size"], "--shard-size SIZE cuts the output into files"),
    (&["--leave-output-tensor"], "--output-type TYPE sets the type of the output projection"),
    (
        &["--token-embedding-type", "--output-tensor-type"],
        "--embedding-type and --output-type set these types",
    ),
    (
        &["--pattern", "--grep"],
        "--filter of `apr tensors` and --tensors of `apr diff` select by name",
    ),
    (
        &["--stat", "--stats", "--statistics", "--histogram"],
        "`apr tensors --stats` and --hist NAME show values",
    ),
    (&["--no-color", "--no-colour", "--colour"], "--color never, or NO_COLOR"),
    (&["--jobs", "-t", "--nthreads", "--num-threads"], "--threads N, or APR_THREADS"),
    (&["-j"], "--json prints the report as JSON; --threads N sets the number of threads"),
    (&["--parents", "--mkdir"], "apr creates the missing folders of an output"),
    (&["--recursive", "-R"], "folders are read with all folders below them"),
    (&["--temp"], "--temperature T of `apr run` sets the sampling temperature"),
    (
        &["--do-sample", "--sample"],
        "--temperature T of `apr run` samples with T above 0; 0 takes the likeliest token",
    ),
    (
        &["--ctx-size", "--n-ctx", "--context-size", "--context-length", "--max-seq-len"],
        "the context is the model's; --max-tokens N of `apr run` limits the answer",
    ),
    (&["--system-prompt", "--system-message"], "--system TEXT of `apr run` sets the system prompt"),
    (&["--num-beams", "--beam-size"], "--beams N of `apr run` searches with N beams"),
    (
        &[
            "--n-gpu-layers",
            "--gpu-layers",
            "-ngl",
            "--ngl",
            "--gpu",
            "--gpus",
            "--cuda",
            "--device",
            "--device-map",
        ],
        "apr has no GPU support; --threads N sets the number of CPU threads",
    ),
    (
        &["--trust-remote-code"],
        "apr runs no code of a model; `apr scan MODEL` finds code that loading it elsewhere would \
         run",
    ),
    (&["--cache-dir"], "the variable APR_CACHE sets the cache folder"),
    (
        &["--chat-template", "--chat-template-file"],
        "`apr run MODEL --chat` applies the model's chat template; `apr edit MODEL \
         --chat-template FILE` replaces it",
    ),
    (&["--grammar-file"], "--grammar FILE of `apr run` limits the text to a grammar"),
    (&["--add-metadata"], "--set KEY=VALUE of `apr edit` sets a key of the metadata"),
    (&["--ppl", "--perplexity"], "`apr validate MODEL --quality --text FILE` measures perplexity"),
];

/// Commands of other tools.
pub(super) const COMMANDS: [(&[&str], &str); 47] = [
    (&["list", "dir", "layers", "weights"], "`apr tensors MODEL` lists the tensors"),
    (
        &[
            "show",
            "cat",
            "view",
            "open",
            "describe",
            "head",
            "header",
            "meta",
            "metadata",
            "stat",
            "summary",
            "summarize",
            "size",
            "du",
            "params",
            "parameters",
            "details",
            "file",
        ],
        "`apr inspect MODEL` shows family, size, dtypes and metadata",
    ),
    (
        &["chat", "talk", "repl"],
        "`apr run MODEL --chat` holds a conversation, if the model has a chat template; --prompt \
         TEXT is a single prompt",
    ),
    (
        &[
            "infer",
            "inference",
            "generate",
            "predict",
            "prompt",
            "embed",
            "embedding",
            "embeddings",
            "transcribe",
            "translate",
            "exec",
        ],
        "`apr run MODEL` runs a model: --prompt TEXT, or --input FILE",
    ),
    (
        &["pull", "fetch", "get", "clone"],
        "`apr download hf://ORG/REPO` downloads a model; other commands read hf:// themselves",
    ),
    (
        &["perplexity", "ppl", "eval", "evaluate", "score", "quality", "benchmark-quality"],
        "`apr validate MODEL --quality --text FILE` measures perplexity, `apr validate MODEL \
         --quality` scores a model",
    ),
    (
        &["vocab", "vocabulary", "encode", "decode", "tokens", "tokenizer"],
        "`apr tokenize MODEL --prompt TEXT` shows tokens and their ids",
    ),
    (&["licence", "licences", "licenses"], "`apr license` issues, shows and verifies licences"),
    (
        &["sha256", "sha256sum", "digest", "blake3", "md5", "hash", "checksum"],
        "`apr validate MODEL --sha256 HEX` checks the digest of a file; `apr tensors MODEL \
         --digest` lists the digests of its tensors",
    ),
    (&["search", "find", "grep"], "`apr tensors MODEL --filter NAME` selects tensors by name"),
    (&["finetune", "train"], "apr trains students only: `apr distill MODEL -o OUT --data TEXT`"),
    (&["svd", "lowrank", "low-rank"], "`apr factorize MODEL --rank R -o OUT`"),
    (&["time", "profile", "speed", "benchmark", "perf"], "`apr bench MODEL`, or `apr trace MODEL`"),
    (
        &["topology", "netgraph", "plot", "draw", "visualize", "visualise", "viz"],
        "`apr graph MODEL` draws the graph",
    ),
    (&["stats", "hist", "histogram"], "`apr tensors MODEL --stats`, or --hist NAME"),
    (&["check", "test", "doctor", "fsck", "repair", "fix"], "`apr validate MODEL` checks a model"),
    (
        &["serve", "server", "web", "browse", "browser", "gui", "netron"],
        "`apr page MODEL` opens a model in the browser",
    ),
    (&["compare", "cmp"], "`apr diff A B` compares two models"),
    (&["pack", "add"], "`apr import SOURCE -o OUT.apr` packs a model"),
    (&["unpack", "extract", "save"], "`apr export MODEL -o FOLDER` writes the files back"),
    (
        &["transcode", "cast", "compress", "decompress", "copy", "cp"],
        "`apr convert MODEL -o OUT`, with --precision or --compress",
    ),
    (
        &[
            "gguf",
            "safetensors",
            "onnx",
            "to-gguf",
            "hf-to-gguf",
            "convert-hf",
            "convert-hf-to-gguf",
        ],
        "`apr convert MODEL -o OUT` converts by the extension of the output",
    ),
    (
        &["login", "auth", "whoami"],
        "`hf auth login` stores the token that apr sends to the hub, or set HF_TOKEN",
    ),
    (&["push", "publish"], "`apr upload FOLDER hf://ORG/REPO` uploads a folder in one commit"),
    (&["dequantize"], "`apr convert MODEL --dequantize f16 -o OUT`"),
    (
        &["split", "gguf-split"],
        "`apr shard MODEL --size 5GB -o OUT.apr`, or `apr convert --shard-size`",
    ),
    (
        &["concat", "cat-shards", "join-shards", "unsplit", "unshard"],
        "`apr join MANIFEST -o OUT.apr` puts shards together",
    ),
    (&["rename", "set", "drop"], "`apr edit MODEL --rename OLD=NEW`, --set, --drop"),
    (
        &["rm", "remove", "delete", "uninstall"],
        "`apr cache clear` removes downloads; `apr edit MODEL --drop GLOB` removes tensors",
    ),
    (&["quant", "quants"], "`apr quantize MODEL --type TYPE -o OUT` quantizes a model"),
    (
        &["optimize", "optimise", "shrink", "slim"],
        "`apr quantize MODEL --type TYPE -o OUT` makes a model smaller; so do `apr prune` and \
         `apr factorize`",
    ),
    (
        &["memory", "mem", "vram", "ram"],
        "`apr inspect MODEL --memory` estimates the memory that a run requires",
    ),
    (
        &["template", "chat-template"],
        "`apr run MODEL --chat` applies the chat template; `apr edit MODEL --chat-template FILE` \
         replaces it",
    ),
    (&["config", "configuration"], "`apr inspect MODEL --full` shows all metadata"),
    (&["safe", "safety", "security", "picklescan"], "`apr scan MODEL` looks for malicious code"),
    (&["lora-extract", "extract-lora"], "`apr lora extract` extracts an adapter"),
    (&["lora-merge"], "`apr lora merge` merges adapters into one"),
    (&["lora-resize", "resize-lora"], "`apr lora resize` lowers the rank of an adapter"),
    (&["sparsify", "sparse"], "`apr prune MODEL --prune 0.5 -o OUT` sets weights to zero"),
    (
        &["dump", "hexdump", "xxd", "hex", "strings", "debugger", "decompile", "disassemble"],
        "`apr debug FILE` shows the structure of a file, --hex its bytes, --strings its texts",
    ),
    (&["key", "genkey", "gen-key", "key-gen"], "`apr keygen -o KEY` makes a key pair"),
    (&["ui"], "`apr tui MODEL` browses a model in the terminal, `apr page MODEL` in the browser"),
    (
        &["kl", "kld", "kl-divergence"],
        "`apr validate A B --quality --text FILE` measures the KL divergence of two models",
    ),
    (
        &["fuse", "merge-lora"],
        "`apr merge MODEL --lora ADAPTER -o OUT` merges an adapter into a model",
    ),
    (&["license-check"], "`apr license check MODEL --trusted PUB` verifies a licence"),
    (
        &["install", "update"],
        "apr does not update itself; `apr download hf://ORG/REPO` downloads a model, `apr upgrade \
         OLD NEW` converts an older .apr file",
    ),
    (&["completion", "complete"], "`apr completions SHELL` prints a completion script"),
];

/// Words after a command with commands of its own, and what does the same.
pub(super) const INNER: [(&str, &[&str], &str); 11] = [
    (
        "license",
        &["verify", "validate", "test"],
        "`apr license check MODEL --trusted PUB` verifies a licence",
    ),
    (
        "license",
        &["create", "new", "add", "sign"],
        "`apr license issue MODEL --licensee TEXT --key KEY` issues a licence",
    ),
    (
        "watermark",
        &["find", "check", "verify", "read", "extract", "test"],
        "`apr watermark detect MODEL --key SECRET` detects the id",
    ),
    (
        "watermark",
        &["add", "create", "insert", "mark"],
        "`apr watermark embed MODEL -o OUT --id ID --key SECRET` embeds an id",
    ),
    (
        "cache",
        &["list", "ls", "show", "size", "du", "dir", "path"],
        "`apr cache info` shows the folder and its models",
    ),
    (
        "cache",
        &["rm", "remove", "delete", "prune", "clean", "purge", "gc"],
        "`apr cache clear` removes downloads, `apr cache clear MODEL` one model",
    ),
    ("cache", &["check", "validate", "test"], "`apr cache verify` verifies downloads"),
    (
        "canary",
        &["test", "verify", "run", "validate", "compare"],
        "`apr canary check MODEL --canary FILE` checks a model",
    ),
    (
        "canary",
        &["record", "new", "add", "make"],
        "`apr canary create MODEL --prompt TEXT -o FILE` records answers",
    ),
    (
        "lora",
        &["fuse", "apply", "bake"],
        "`apr merge MODEL --lora ADAPTER -o OUT` merges an adapter into a model",
    ),
    (
        "lora",
        &["export", "to-gguf", "to-peft"],
        "`apr lora convert ADAPTER --base MODEL -o OUT` converts an adapter",
    ),
];
