//! Examples of each command, which its help and its manual page end with.

mod rendered;
mod setup;

pub(super) use rendered::with_examples;

/// A command line and its purpose.
type Example = (&'static str, &'static str);

/// By the words of the command, those about models.
const OF_MODELS: [(&str, &[Example]); 49] = [
    (
        "",
        &[
            ("apr inspect model.gguf", "show family, size, dtypes and metadata; reads no weights"),
            (
                "apr import llama-folder -o llama.apr",
                "pack a Hugging Face folder into one file, and validate every tensor",
            ),
            (
                "apr quantize llama.apr --type q4_k_m -o llama.gguf",
                "quantize to 4-bit blocks, as llama-quantize does",
            ),
        ],
    ),
    (
        "inspect",
        &[
            ("apr inspect model.safetensors", "show family, size, dtypes and metadata"),
            (
                "apr inspect hf://openai/whisper-tiny",
                "inspect a model on a hub; fetches the header only",
            ),
            ("apr inspect *.gguf --quantization", "compare the quantization of several models"),
            (
                "apr inspect model.gguf --memory --context 8192 --cache-type q8_0",
                "estimate the memory of a run; reads no weights",
            ),
            ("apr inspect model.apr --json", "print the report as JSON"),
        ],
    ),
    (
        "tensors",
        &[
            (
                "apr tensors model.gguf --filter attn_q --stats",
                "statistics of the tensors whose names match",
            ),
            ("apr tensors model.apr --hist norm.weight", "histogram of one tensor"),
            ("apr tensors model.apr --values 'lm_head.weight[0:4, -3:]'", "values of a slice"),
            (
                "apr tensors model.apr --digest > model.sha256",
                "digests of the tensors, for apr validate --manifest",
            ),
        ],
    ),
    (
        "validate",
        &[
            ("apr validate model.apr", "run all checks"),
            (
                "apr validate model.safetensors --nan-check --strict",
                "run one check, and exit with 5 on warnings",
            ),
            (
                "apr validate model.apr --quality --min-score 60",
                "score by 100 points; exit with 5 if fewer than 60 pass",
            ),
            (
                "apr validate model.apr small.gguf --quality",
                "compare outputs on ten inputs; exit with 5 beyond the tolerance",
            ),
            (
                "apr validate model.apr small.gguf --quality --text wiki.txt",
                "measure perplexity and KL divergence, as llama-perplexity does",
            ),
            (
                "apr validate pytorch_model.bin --sarif found.sarif",
                "report code in a pickle as SARIF",
            ),
        ],
    ),
    (
        "canary",
        &[
            (
                "apr canary create model.apr --prompt \"12+34=\" -o canary.json",
                "record the model's answer",
            ),
            (
                "apr canary check small.gguf --canary canary.json",
                "exit with 5 if an answer differs",
            ),
        ],
    ),
    (
        "canary create",
        &[
            (
                "apr canary create whisper --input speech.wav -o canary.json",
                "record a transcription, and the SHA-256 of the audio",
            ),
            (
                "apr canary create model.apr --from questions.txt --count 20 -o canary.json",
                "record answers to the lines that have the most different tokens",
            ),
            (
                "apr canary create model.apr --prompt 2+2= --expect 4 -o canary.json",
                "expect an answer other than the model's own",
            ),
        ],
    ),
    (
        "canary check",
        &[(
            "apr canary check small.gguf --canary canary.json --json",
            "print answers, error rates and failures as JSON",
        )],
    ),
    (
        "scan",
        &[
            ("apr scan checkpoint.pt", "scan one checkpoint, without running its code"),
            ("apr scan downloads --sarif -", "scan a folder, and write SARIF to standard output"),
            ("apr scan downloads --sbom bom.json", "write a bill of materials in CycloneDX"),
        ],
    ),
    (
        "diff",
        &[
            ("apr diff model.apr model.gguf", "compare a model with its conversion"),
            (
                "apr diff a.apr b.apr --read --exit-code",
                "compare values even if digests agree; exit with 5 on a difference",
            ),
            ("apr diff a.apr b.safetensors --max-l2 1.0", "exit with 5 beyond a distance"),
        ],
    ),
    (
        "debug",
        &[
            ("apr debug broken.apr", "analyse a file that does not open"),
            ("apr debug model.apr --hex --tensor norm.weight", "dump the first bytes of a tensor"),
        ],
    ),
    (
        "lint",
        &[
            ("apr lint model.apr", "check best practices"),
            ("apr lint llama-folder --strict", "exit with 5 on warnings"),
        ],
    ),
    (
        "explain",
        &[
            ("apr explain model.gguf", "explain a model's architecture"),
            ("apr explain model.apr --tensor norm.weight", "explain the purpose of a tensor"),
            ("apr explain E002", "explain an error code"),
        ],
    ),
    (
        "graph",
        &[
            ("apr graph llama-folder", "print the graph as a tree; repeated layers are one row"),
            ("apr graph model.onnx --format svg -o model.svg", "draw the graph as an image"),
            (
                "apr graph model.onnx --node /encoder/layer.0/attention/MatMul",
                "show one node with its inputs and outputs",
            ),
        ],
    ),
    (
        "tui",
        &[
            ("apr tui llama.gguf", "show tensors, statistics, histograms and the graph"),
            ("apr tui llama llama-q4.gguf --compare", "compare two models tensor by tensor"),
            ("apr tui llama --prompt \"2+3=\"", "run the model and show each step"),
        ],
    ),
    (
        "page",
        &[("apr page llama.gguf", "open the model in the browser; any size, nothing is uploaded")],
    ),
    (
        "tokenize",
        &[
            (
                "apr tokenize llama.gguf --prompt \"Once upon a time\"",
                "print ids, tokens and byte offsets",
            ),
            ("apr tokenize tiny-llama --tokens 256,49,50 --decode", "decode token ids"),
            (
                "apr tokenize model.apr --input text.txt --no-special-tokens --json",
                "tokenize a file without special tokens",
            ),
        ],
    ),
    (
        "run",
        &[
            ("apr run model.onnx --input pixels.npy", "run an ONNX model on one array"),
            (
                "apr run model.onnx -i input_ids=ids.json -i attention_mask=mask.json --json",
                "run it on named inputs, and print the outputs as JSON",
            ),
            ("apr run llama.gguf --prompt \"Once upon a time\"", "generate text"),
            (
                "apr run llama.gguf --prompt \"Once upon a time\" --temperature 1 \
                 --dry-multiplier 0.8 --xtc-probability 0.5",
                "sample with llama.cpp's DRY and XTC",
            ),
            ("apr run chat.gguf --prompt \"What is a llama?\" --chat", "answer a chat message"),
            ("apr run chat.gguf --chat", "hold a conversation on a terminal"),
            ("apr run llava --image photo.jpg --prompt \"What is this?\"", "ask about an image"),
            (
                "apr run gemma.gguf --mmproj mmproj.gguf --image photo.jpg \
                 --prompt \"What is this?\"",
                "ask a GGUF model about an image",
            ),
            (
                "apr run llama --lora adapter:0.5 --prompt Hello",
                "apply half of an adapter, without merging it",
            ),
            (
                "apr run llama.gguf --input long.txt --prompt-cache long.cache",
                "reuse the KV cache of a long prompt in the next run",
            ),
            ("apr run MiniLM --prompt \"a text\" -o vector.npy", "embed a text"),
            (
                "apr run MiniLM --input texts.txt --lines -o vectors.npy",
                "embed each line of a file",
            ),
            (
                "apr run whisper-tiny --input speech.mp3 --timestamps",
                "transcribe speech with timestamps",
            ),
            (
                "apr run whisper-tiny --input speech.mp3 --word-timestamps --json",
                "print the times of each word",
            ),
            (
                "apr run whisper-tiny --input talk.mp3 --subtitles srt --fallback",
                "write subtitles, and transcribe repetitive windows again",
            ),
            (
                "apr run opus-mt-en-de --prompt \"Good morning.\" --beams 4",
                "translate with a beam search",
            ),
            (
                "apr run whisper-tiny --input speech.mp3 --want features -o mel.npy",
                "write the log-mel spectrogram of the input",
            ),
            (
                "apr run clip --input cat.jpg --prompt \"a cat\" --prompt \"a dog\"",
                "classify an image against texts (zero-shot)",
            ),
        ],
    ),
    (
        "bench",
        &[
            (
                "apr bench llama.gguf -p 512 -n 128 -t 1,2 --repeat 5",
                "measure a prompt of 512 tokens and 128 generated ones, on one thread and on two",
            ),
            ("apr bench model.onnx", "measure runs per second"),
        ],
    ),
    (
        "trace",
        &[
            ("apr trace llama.gguf --prompt \"Once upon a time\"", "time and memory of each block"),
            (
                "apr trace llama.gguf --prompt \"Once upon a time\" --detect-anomalies",
                "find NaN, explosions, dead neurons and repetition",
            ),
            (
                "apr trace llama llama-q4.gguf --diff --prompt \"Once upon a time\"",
                "find the step where two models diverge, and its weights",
            ),
            (
                "apr trace whisper-tiny --input speech.wav --trace-payload",
                "activations, attention and predictions of every step",
            ),
            (
                "apr trace llama.gguf --prompt \"Once upon a time\" --interactive",
                "step through the run on a screen",
            ),
            (
                "apr trace MiniLM --prompt \"a text\" --export trace.perfetto",
                "a timeline of every operator, for ui.perfetto.dev",
            ),
            (
                "apr trace vit --input cat.jpg --dump-activations activations",
                "write every activation as .npy",
            ),
        ],
    ),
    (
        "import",
        &[
            ("apr import llama-folder -o llama.apr", "pack weights, configuration and tokenizer"),
            (
                "apr import model.safetensors -o model.apr --quantize q8_0",
                "quantize while importing",
            ),
            (
                "apr import checkpoint.pt -o model.apr --prefix state_dict.",
                "import one state dict of a training checkpoint",
            ),
        ],
    ),
    (
        "convert",
        &[
            ("apr convert model.safetensors -o model.gguf", "convert by extension"),
            (
                "apr convert model.apr -o small.apr --precision bf16 --compress",
                "cast to bf16, and compress without loss",
            ),
            (
                "apr convert model.onnx -o simple.onnx --simplify",
                "fold constants, and remove nodes that do nothing",
            ),
        ],
    ),
    (
        "merge",
        &[
            ("apr merge a.apr b.apr -o merged.apr", "average two models"),
            (
                "apr merge tuned1 tuned2 --base base --strategy ties --density 0.5 -o merged",
                "merge differences to a base by TIES",
            ),
            ("apr merge --config merge.yml -o merged", "run a configuration of mergekit"),
            ("apr merge base --lora adapter:0.8 -o tuned.apr", "merge a LoRA adapter, times 0.8"),
        ],
    ),
    (
        "prune",
        &[
            (
                "apr prune model.apr -o half.apr --prune 0.5",
                "set half of the weights of each matrix to zero, the smallest first",
            ),
            (
                "apr prune folder -o pruned.apr --prune-nm 2:4 --calibration text.txt",
                "keep two of every four weights, by magnitude and activations",
            ),
            (
                "apr prune model.apr -o small.apr --prune 0.9 --sparse csr",
                "store what is left without the zeros",
            ),
        ],
    ),
    (
        "distill",
        &[
            (
                "apr distill folder --distill small --data texts.jsonl -o student.apr",
                "train a model of half the layers on the outputs of this one",
            ),
            (
                "apr distill m.apr --distill-layers 4 --data chats.jsonl -o s.gguf --quantize q8_0",
                "keep four layers, train them, and quantize the result",
            ),
            (
                "apr distill m.apr --distill tiny --data t.jsonl -o s.apr --checkpoint d --resume",
                "resume an interrupted training",
            ),
        ],
    ),
    (
        "factorize",
        &[
            (
                "apr factorize model.apr -o small.apr --rank 64",
                "keep 64 singular values of each matrix",
            ),
            (
                "apr factorize folder -o small.apr --energy 0.95 --target '*.mlp.*'",
                "keep 95 % of the energy of some",
            ),
            ("apr factorize small.apr -o dense.apr --dense", "store dense matrices again"),
        ],
    ),
    (
        "lora extract",
        &[
            (
                "apr lora extract tuned --base base --rank 16 -o adapter",
                "extract an adapter of rank 16",
            ),
            (
                "apr lora extract tuned --base base --energy 0.9 --save-others -o adapter",
                "with 90 % of each difference, and whole copies of norms and embeddings",
            ),
        ],
    ),
    (
        "lora convert",
        &[
            (
                "apr lora convert adapter --base base -o adapter.gguf",
                "write an adapter of PEFT for llama.cpp",
            ),
            (
                "apr lora convert adapter.gguf --base base -o adapter",
                "write one of llama.cpp for PEFT",
            ),
        ],
    ),
    (
        "lora merge",
        &[
            ("apr lora merge style:0.7 subject -o both", "add both, the first times 0.7"),
            (
                "apr lora merge style subject --rank 16 -o both",
                "the same with matrices of rank 16 instead of all side by side",
            ),
            (
                "apr lora merge a b c --method ties --density 0.5 -o merged",
                "the largest half of the elements that agree in sign",
            ),
        ],
    ),
    (
        "lora resize",
        &[
            ("apr lora resize adapter --rank 8 -o small", "lower the rank to 8"),
            (
                "apr lora resize lora.safetensors --energy 0.9 -o small.safetensors",
                "the rank of each module that keeps 90 % of its change",
            ),
        ],
    ),
    (
        "imatrix",
        &[
            (
                "apr imatrix model.gguf --text wiki.txt -o imatrix.gguf",
                "measure on a text, in windows of 512 tokens",
            ),
            (
                "apr imatrix model --text wiki.txt --part 2/2 --add 1.gguf -o imatrix.gguf",
                "measure half of a text, and add the other half",
            ),
            ("apr imatrix whisper --input speech.wav -o imatrix.gguf", "measure on an audio file"),
        ],
    ),
    (
        "quantize",
        &[
            (
                "apr quantize model.safetensors --type q4_k_m -o model.gguf",
                "quantize with a mix of K-quants",
            ),
            (
                "apr quantize model.apr -t q8_0 -o q.apr --max-drift 0.01",
                "fail if the quantization error is too large",
            ),
            (
                "apr quantize llama-folder -t q4_k_m --imatrix imatrix.gguf -o q.gguf",
                "use an importance matrix",
            ),
            (
                "apr quantize llama --search --bits-per-weight 4.25 --calibration a.txt -o q.gguf",
                "choose the type of each tensor by its effect on the outputs",
            ),
            (
                "apr quantize model.onnx -t w8a8 --calibration images -o int8.onnx",
                "multiply integers in ONNX, with ranges from the files of a folder",
            ),
        ],
    ),
    (
        "export",
        &[
            ("apr export model.apr -o folder", "write a folder that transformers loads"),
            (
                "apr export model.gguf --format safetensors --dequantize f16 -o folder",
                "dequantize a GGUF file into such a folder",
            ),
        ],
    ),
    (
        "keygen",
        &[
            ("apr keygen -o signing.pem", "key pair for signing: signing.pem and signing.pem.pub"),
            ("apr keygen --for encryption -o anna.pem", "key pair for encryption"),
        ],
    ),
    ("sign", &[("apr sign model.apr --key signing.pem", "sign in place; reads no weights")]),
    (
        "verify",
        &[(
            "apr verify model.apr --trusted signing.pem.pub",
            "verify the signature and every tensor",
        )],
    ),
    (
        "encrypt",
        &[
            (
                "apr encrypt model.apr -o sealed.apr --recipient anna.pem.pub",
                "encrypt for a recipient",
            ),
            (
                "apr encrypt model.apr -o sealed.apr --password-file -",
                "encrypt with a password from standard input",
            ),
        ],
    ),
    (
        "decrypt",
        &[("apr decrypt sealed.apr -o model.apr --key anna.pem", "decrypt with a private key")],
    ),
    (
        "license issue",
        &[(
            "apr license issue model.apr --licensee Anna --expires 2027-01-31 --key signing.pem",
            "issue a licence to a person until a date",
        )],
    ),
    ("license show", &[("apr license show model.apr", "show the licence")]),
    (
        "license check",
        &[(
            "apr license check model.apr --trusted signing.pem.pub --licensee Anna",
            "check that the licence covers a user",
        )],
    ),
    (
        "edit",
        &[
            ("apr edit model.apr --set license=mit", "set metadata in place"),
            ("apr edit model.apr --chat-template template.jinja", "replace the chat template"),
            (
                "apr edit model.apr --drop 'vision.*' -o text.apr",
                "write a copy without some tensors",
            ),
            (
                r"apr edit model.safetensors --rename '^layers\.(\d+)=blk.\1'",
                "rename tensors by a regular expression",
            ),
        ],
    ),
    ("upgrade", &[("apr upgrade old.apr new.apr", "rewrite an old file in the current format")]),
    (
        "shard",
        &[(
            "apr shard model.apr --size 5GB -o parts.apr",
            "write parts-00001-of-00004.apr ... and the manifest parts.apr",
        )],
    ),
    ("join", &[("apr join parts.apr -o model.apr", "join the shards of a manifest")]),
    (
        "plan",
        &[
            (
                "apr plan --parts 8 -o plan.json quantize llama.apr -t q4_k_m -o small.apr",
                "plan a job in 8 parts",
            ),
            (
                "apr plan --max-part 5GB -o plan.json convert hf://org/llama -o llama.apr",
                "limit the size of each part",
            ),
        ],
    ),
    ("run-part", &[("apr run-part plan.json 0", "run the first part")]),
    ("finish", &[("apr finish plan.json", "check all parts, and write the manifest")]),
    (
        "watermark embed",
        &[(
            "apr watermark embed model.apr -o annas.apr --id anna-2026 --key secret",
            "mark a copy with the id of its recipient",
        )],
    ),
    (
        "watermark detect",
        &[("apr watermark detect leaked.gguf --key secret", "read the id of a leaked copy")],
    ),
];

/// The examples of a command, by its words after `apr`.
pub(crate) fn examples(words: &str) -> &'static [Example] {
    all().find(|(of, _)| *of == words).map_or(&[], |(_, examples)| examples)
}

/// All examples, by the words of the command.
fn all() -> impl Iterator<Item = &'static (&'static str, &'static [Example])> {
    OF_MODELS.iter().chain(&setup::OF_SETUP)
}

#[cfg(test)]
mod tests;
