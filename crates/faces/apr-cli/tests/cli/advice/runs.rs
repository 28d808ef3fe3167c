//! Advice about runs.

use std::fs;

use serde_json::{Value, json};

use super::{Advice, copy, followed, with_llama};

/// Advice about runs.
pub(super) const RUNS: &[Advice] = &[
    (
        "apr run m.apr --prompt 1+ --max-work 1",
        4,
        "raise --max-work",
        "apr run m.apr --prompt 1+ --max-work 1000000000",
    ),
    (
        "apr run m.apr --prompt 1+ --max-memory 100K",
        4,
        "raise --max-memory or APR_RAM_LIMIT",
        "apr run m.apr --prompt 1+ --max-memory 100M; \
         APR_RAM_LIMIT=100M apr run m.apr --prompt 1+",
    ),
    (
        "apr run m.apr --prompt 1+ --top-k 3",
        0,
        "pass --temperature 1 to sample",
        "apr run m.apr --prompt 1+ --top-k 3 --temperature 1 2> said; test ! -s said",
    ),
    (
        "apr run m.apr --prompt 1+ --repeat-last-n 3",
        0,
        "pass --repeat-penalty 1.1",
        "apr run m.apr --prompt 1+ --repeat-last-n 3 --repeat-penalty 1.1 2> said; test ! -s said",
    ),
    (
        "apr run m.apr --prompt 1+ --logit-bias 2+=1",
        2,
        "pass the id of each with --logit-bias ID=X",
        "apr run m.apr --prompt 1+ --logit-bias 50=1 --logit-bias 43=1",
    ),
    (
        "apr run m.apr --prompt 1+ -o v.npy",
        2,
        "use > FILE",
        "apr run m.apr --prompt 1+ > v.txt; test -s v.txt",
    ),
    (
        "apr run m.apr --prompt $(printf '1+%.0s' $(seq 200))",
        2,
        "pass --truncate to shorten it",
        "apr run m.apr --prompt $(printf '1+%.0s' $(seq 200)) --truncate",
    ),
    (
        "apr run llama",
        2,
        "missing prompt: pass --prompt TEXT; for a conversation (--chat), the model needs a chat \
         template",
        "apr run llama --prompt 1+",
    ),
    (
        "cp -r llama talks; cp template talks/chat_template.jinja; apr run talks",
        2,
        "missing prompt: pass --prompt TEXT, or --chat to hold a conversation",
        "apr run talks --prompt 1+",
    ),
    (
        "apr run $FIXTURES/run/tiny-bert",
        2,
        "missing text: pass --prompt TEXT",
        "apr run $FIXTURES/run/tiny-bert --prompt hello",
    ),
    (
        "apr run m.apr --chat --prompt 1+",
        4,
        "add one to an .apr or .gguf file with `apr edit MODEL --chat-template FILE`, or give the \
         text alone with --prompt",
        "cp m.apr c.apr; apr edit c.apr --chat-template template; \
         apr run c.apr --chat --prompt 1+; apr convert m.apr -o c.gguf; \
         apr edit c.gguf --chat-template template; apr run c.gguf --chat --prompt 1+; \
         apr run m.apr --prompt 1+",
    ),
    (
        "apr run llama --chat --prompt 1+",
        4,
        "put chat_template.jinja next to the model's config.json; for an .apr \
         file, import that folder again",
        "cp template llama/chat_template.jinja; apr run llama --chat --prompt 1+; \
         apr import llama -o again.apr; apr run again.apr --chat --prompt 1+",
    ),
    (
        "apr run mute --prompt 1+",
        4,
        "put tokenizer.json next to the model's config.json; for an .apr file, \
         import that folder again; pass token ids with --tokens 1,15,7",
        "apr run mute --tokens 1,15,7; apr import mute -o mute.apr; \
         cp llama/tokenizer.json mute; apr run mute --prompt 1+; \
         apr import mute -o heard.apr; apr run heard.apr --prompt 1+",
    ),
    (
        "apr run m.apr --prompt a --prompt b --stop x --separator 4",
        0,
        "use --json, or another --separator",
        "apr run m.apr --prompt a --prompt b --stop x --json; \
         apr run m.apr --prompt a --prompt b --separator '|' 2> said; test ! -s said",
    ),
    (
        "apr tokenize m.apr",
        2,
        "pass --prompt TEXT, --input FILE or a pipe, or ids with --tokens 1,15,7",
        "apr tokenize m.apr --prompt 1+; apr tokenize m.apr --input template; \
         echo 1+ | apr tokenize m.apr; apr tokenize m.apr --tokens 1,15,7",
    ),
    ("apr run m.apr", 2, "missing prompt: pass --prompt TEXT", "apr run m.apr --prompt 1+"),
    (
        "apr run m.apr -i ids.npy",
        2,
        "pass --input NAME=FILE",
        "apr run m.apr --input input_ids=ids.npy",
    ),
    (
        "apr trace m.apr",
        2,
        "nothing to trace: pass --prompt TEXT, --tokens IDS or --input FILE",
        "apr trace m.apr --prompt 1+; apr trace m.apr --tokens 1,15,7; \
         apr trace m.apr --input template.txt",
    ),
    (
        "apr convert m.apr -o m.onnx; apr run m.onnx --prompt 1+",
        4,
        "put tokenizer.json next to the model's config.json",
        "apr run m.onnx --tokens 1,15,7; mkdir graph; cp m.onnx llama/config.json \
         llama/tokenizer.json graph; apr run graph/m.onnx --prompt 1+; apr run graph --prompt 1+",
    ),
    (
        "apr run $FIXTURES/run/tiny-clip -i $FIXTURES/picture/a.png",
        2,
        "pass candidate texts: --prompt \"a cat\" --prompt \"a dog\"",
        "apr run $FIXTURES/run/tiny-clip -i $FIXTURES/picture/a.png --prompt \"a cat\" \
         --prompt \"a dog\"",
    ),
    (
        "apr run $FIXTURES/run/tiny-vit -i $FIXTURES/picture/a.png --want logits",
        2,
        "audio and image files: pass an array (--want features -o FILE writes one)",
        "apr run $FIXTURES/run/tiny-vit -i $FIXTURES/picture/a.png --want features -o f.npy; \
         apr run $FIXTURES/run/tiny-vit -i pixel_values=f.npy --want logits",
    ),
    (
        "apr run $FIXTURES/run/tiny-whisper -i ids.npy",
        2,
        "pass --part NAME",
        "apr run $FIXTURES/run/tiny-whisper -i $FIXTURES/sound/a.wav --want features -o s.npy; \
         apr run $FIXTURES/run/tiny-whisper --part encoder_model -i input_features=s.npy",
    ),
    (
        "apr run $FIXTURES/run/tiny-whisper -i $FIXTURES/sound/a.wav -o v.npy",
        2,
        "use > FILE or --json",
        "apr run $FIXTURES/run/tiny-whisper -i $FIXTURES/sound/a.wav > v.txt; test -e v.txt; \
         apr run $FIXTURES/run/tiny-whisper -i $FIXTURES/sound/a.wav --json > v.json",
    ),
    (
        "apr run $FIXTURES/run/tiny-wav2vec2 -i $FIXTURES/sound/a.wav -o v.npy",
        2,
        "use --json",
        "apr run $FIXTURES/run/tiny-wav2vec2 -i $FIXTURES/sound/a.wav --json",
    ),
    (
        "apr run $FIXTURES/run/tiny-clip -i $FIXTURES/picture/a.png --prompt a -o v.npy",
        2,
        "--output writes arrays, and this model returns labels: use --json",
        "apr run $FIXTURES/run/tiny-clip -i $FIXTURES/picture/a.png --prompt a --json",
    ),
    (
        "apr run qa --prompt Who",
        2,
        "--prompt QUESTION --context TEXT",
        "apr run qa --prompt Who --context 'The Work.'",
    ),
    (
        "apr run qa --prompt Who --context 'The Work.' -o v.npy",
        2,
        "this model returns answers: use --json",
        "apr run qa --prompt Who --context 'The Work.' --json",
    ),
    (
        "apr run m.apr --input template.txt --max-memory 1",
        4,
        "raise --max-memory",
        "apr run m.apr --input template.txt --max-memory 100M",
    ),
    (
        "apr run pools --prompt a",
        0,
        "pass --pooling to choose another",
        "apr run pools --prompt a --pooling cls 2> said; ! grep pooling said",
    ),
    (
        "apr run short --prompt 1+",
        0,
        "pass --max-tokens",
        "apr run short --prompt 1+ --max-tokens 3 2> said; test ! -s said",
    ),
    (
        "apr run english -i $FIXTURES/sound/a.wav --language en",
        2,
        "remove --language and --translate",
        "apr run english -i $FIXTURES/sound/a.wav",
    ),
    (
        "apr run letters -i $FIXTURES/sound/a.wav",
        4,
        "pass arrays with --input NAME=FILE",
        "apr run $FIXTURES/run/tiny-wav2vec2 -i $FIXTURES/sound/a.wav --want features -o l.npy; \
         apr run letters --input input_values=l.npy",
    ),
];

#[test]
fn advice_about_runs_helps() {
    let sandbox = with_llama();
    copy("tiny-llama", &sandbox, "mute");
    fs::remove_file(sandbox.path("mute/tokenizer.json")).expect("it is there");
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    sandbox.write("template", template);
    sandbox.write("template.txt", template);
    let header = "{'descr':'<i8','fortran_order':False,'shape':(1,1),}\n";
    let len = u32::try_from(header.len()).expect("short").to_le_bytes();
    let ids = [b"\x93NUMPY\x02\0", &len[..], header.as_bytes(), &1_u64.to_le_bytes()].concat();
    sandbox.write("ids.npy", ids);
    copy("run/tiny-bert", &sandbox, "pools");
    fs::remove_file(sandbox.path("pools/modules.json")).expect("it is there");
    copy("tiny-llama", &sandbox, "short");
    sandbox.write("short/generation_config.json", r#"{"max_length": 1}"#);
    copy("run/tiny-whisper", &sandbox, "english");
    let settings = sandbox.read("english/generation_config.json");
    let mut settings: Value = serde_json::from_slice(&settings).expect("JSON");
    settings["lang_to_id"] = json!({});
    sandbox.write("english/generation_config.json", settings.to_string());
    copy("run/tiny-wav2vec2", &sandbox, "letters");
    fs::remove_file(sandbox.path("letters/vocab.json")).expect("it is there");
    copy("run/tiny-qa", &sandbox, "qa");
    copy("run/tiny-bert", &sandbox, "bert");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        sandbox.write(&format!("qa/{file}"), sandbox.read(&format!("bert/{file}")));
    }
    followed(&sandbox, RUNS);
}
