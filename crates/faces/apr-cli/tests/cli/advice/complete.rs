//! Each text in the sources that names a command or an option is known here: as advice that these
//! tests or others follow, or as a statement that advises nothing.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Advice, models, runs, seals};

#[path = "../../../src/options.rs"]
mod options;

const FOLLOWED: [&[Advice]; 7] = [
    models::OUTPUTS,
    models::MODELS,
    models::PICTURES,
    models::HOSTILE,
    seals::SEALS,
    seals::JOBS,
    runs::RUNS,
];

/// Parts of texts whose advice other tests follow, and those tests.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "too few for this id at the default strength: pass --strength",
        "invalid_keys_and_models_that_cannot_be_marked_are_rejected",
    ),
    ("--tensor-type {pattern} matches no tensor", "weights_that_stay_in_floats_are_named"),
    (
        "--pure and --requantize do not apply to {scheme} in a graph",
        "weights_that_stay_in_floats_are_named",
    ),
    (
        "can't be calibrated: write the ONNX file first (`apr export`)",
        "weights_that_stay_in_floats_are_named",
    ),
    (
        "the name of a manifest ends in .apr; an export with --shard-size",
        "a_manifest_has_the_ending_by_which_readers_know_it",
    ),
    (
        "--rename, --drop and --keep can't be combined with pruning",
        "a_conversion_chooses_and_renames_tensors_of_its_source",
    ),
    ("{location}: no file matches --include and --exclude", "a_repository_is_scanned_file_by_file"),
    ("needs --density D, the share of", "what_can_not_be_combined_is_refused_by_name"),
    ("--limit applies to --hex and --strings", "wrong_values_are_errors_in_the_arguments"),
    (
        "no file matches --include and --exclude; --all chooses",
        "files_are_copied_into_a_folder_and_chosen_among_all",
    ),
    (
        "its tensors by name; --set and --unset edit its properties",
        "properties_of_an_onnx_model_are_those_that_onnx_writes",
    ),
    ("would not find them: use `apr convert`", "a_copy_of_an_onnx_model_stays_with_its_weights"),
    (
        "and does not write it; `apr convert` writes another",
        "what_can_not_be_edited_is_refused_with_the_reason",
    ),
    ("lists the tensors of this shard; `apr edit", "a_folder_is_its_file_or_a_copy"),
    (
        "--drop and --keep would break the graph of an ONNX file",
        "names_of_a_graph_are_not_changed_by_a_conversion",
    ),
    ("no tensor matches --tensors", "wrong_values_are_errors_in_the_arguments"),
    ("--rename{of}: {message}", "wrong_values_are_errors_in_the_arguments"),
    ("--regex: {why}", "wrong_values_are_errors_in_the_arguments"),
    ("writes nothing: leave out -o", "options_without_effect_are_refused"),
    ("exceeds --max-tokens", "samplers_of_llama_cpp_are_options"),
    ("does not store metadata", "what_can_not_be_edited_is_refused_with_the_reason"),
    (
        "--chat-template can't edit a folder: edit its chat_template.jinja",
        "what_can_not_be_edited_is_refused_with_the_reason",
    ),
    ("--chat-template: {what} has no", "what_can_not_be_edited_is_refused_with_the_reason"),
    (
        "run `apr validate --manifest` for that",
        "digests_are_those_of_hashlib_in_the_form_of_sha256sum",
    ),
    ("run `apr convert --simplify` on the output", "parts_do_not_simplify"),
    ("; --drop it to replace it", "arrays_become_tensors_of_every_format"),
    ("the arrays of --add exceed the memory limit", "arrays_become_tensors_of_every_format"),
    ("--image needs a prompt: pass --prompt", "images_that_nothing_shows_are_refused"),
    (
        "--pooling and --dimensions apply to embeddings",
        "what_does_nothing_beside_a_query_is_refused",
    ),
    ("and --query makes scores: use --json", "what_does_nothing_beside_a_query_is_refused"),
    ("--query takes texts as documents", "what_does_nothing_beside_a_query_is_refused"),
    (
        "--output writes the vectors of the tokens of one text",
        "what_vectors_of_words_and_tokens_do_not_take_is_refused",
    ),
    ("--query needs documents: --prompt for each", "what_does_nothing_beside_a_query_is_refused"),
    (
        "--separator applies to generated text, and --query",
        "what_does_nothing_beside_a_query_is_refused",
    ),
    ("`apr explain {code}` explains the error", "advice_about_hostile_files_helps"),
    ("`apr debug --hex FILE`", "advice_about_hostile_files_helps"),
    ("`apr validate --checksum FILE`", "advice_about_hostile_files_helps"),
    ("`apr validate FILE`", "advice_about_hostile_files_helps"),
    ("`apr inspect --header FILE`", "advice_about_hostile_files_helps"),
    ("pass --fallback to transcribe it again", "a_window_that_repeats_itself_is_named"),
    ("pass --format FORMAT", "advice_about_outputs_helps"),
    ("more (--json lists them)", "advice_about_outputs_helps"),
    ("--json lists them{DIM:#}", "advice_about_outputs_helps"),
    ("--json lists all points{DIM:#}", "a_model_has_a_score_of_100_points_under_four_headings"),
    ("an APR1 file has one dtype; --precision casts", "advice_about_outputs_helps"),
    ("--pickle-class {}", "advice_about_hostile_files_helps"),
    ("apr tensors {file} --hist {tensor}", "advice_about_models_that_do_not_fit_helps"),
    (
        "apr lora convert ADAPTER --base MODEL",
        "an_adapter_is_told_by_its_folder_its_file_and_what_is_made_of_it",
    ),
    ("apr version --json lists them", "a_binary_says_what_it_can_do"),
    ("{} can't be used in a conversation", "a_conversation_refuses_what_it_does_not_take"),
    ("; --relaxed writes it nevertheless", "advice_about_models_that_do_not_fit_helps"),
    ("can't name it: pass --embed", "an_input_whose_name_is_not_utf_8_is_embedded"),
    (
        "needs a key to read the encrypted output",
        "an_encrypted_output_is_checked_where_a_key_opens_it",
    ),
    ("--bits-per-weight N or --max-size SIZE", "what_can_not_be_searched_is_refused"),
    ("--search writes GGUF, .apr and safetensors", "what_can_not_be_searched_is_refused"),
    ("--search chooses the types of {} files itself", "what_can_not_be_searched_is_refused"),
    ("takes the smallest layout to choose: --type mlx-4", "a_search_mixes_layouts_within_the_size"),
    ("need one type, because libraries join them", "mixes_that_no_library_reads_are_rejected"),
    ("can be read once: pass a file", "a_calibration_text_is_measured_on_the_way"),
    ("`apr imatrix` writes one", "types_of_few_bits_are_refused_without_importance"),
    ("pass --parts N for a number of parts", "a_plan_requires_parts_or_their_size"),
    ("`apr imatrix`, and pass --imatrix", "a_calibration_text_is_measured_on_the_way"),
    ("mark the model before the conversion", "ggufs_other_names_and_row_order_hide_no_mark"),
    ("`apr edit '{}'`", "the_command_that_readers_name_undoes_an_interrupted_change"),
    (
        "if `apr validate` finds this file valid, delete that undo file",
        "a_backup_that_was_put_back_over_a_torn_file_is_never_mixed_with_what_was_there",
    ),
    (
        "--output with its own name and --overwrite",
        "a_backup_by_hard_links_is_not_changed_through_the_other_name",
    ),
    (
        "raise the limit with --max-memory",
        "a_header_that_needs_more_memory_is_refused_with_what_it_needs",
    ),
    (
        "; raise it with --max-memory",
        "costs_of_a_password_that_nobody_would_ask_for_are_e008_before_anything_is_computed",
    ),
    ("without --external-data never", "weights_of_2_gib_and_more_lie_beside_their_graph"),
    ("--lora needs the model", "what_can_not_be_merged_is_refused_before_anything_is_written"),
    (
        "--lora with --mmproj needs adapters in GGUF files",
        "a_part_for_images_that_does_not_fit_is_refused",
    ),
    (
        "--lora merges adapters into one model",
        "what_can_not_be_merged_is_refused_before_anything_is_written",
    ),
    (
        "; --dequantize f32 writes floats",
        "weights_whose_type_the_graph_does_not_say_have_that_of_the_checkpoint",
    ),
    (
        "--arch NAME sets one of the known families, --arch-file FILE defines another",
        "a_model_whose_computation_nobody_knows_is_refused",
    ),
    ("--arch NAME sets a family of the same architecture", "a_failure_leaves_what_was_there"),
    (
        "with --arch NAME",
        "qa_95_a_legacy_ggml_file_is_known_by_its_hyperparameters_or_by_what_the_user_says",
    ),
    ("; pass --dequantize f16", "quantized_weights_are_pruned_as_floats"),
    ("cast or dequantize them in an earlier run", "sparse_tensors_come_back_as_they_were"),
    ("--sparse is for .apr output", "sparse_tensors_come_back_as_they_were"),
    ("and --quantize makes blocks: choose one", "sparse_tensors_come_back_as_they_were"),
    (
        "nothing to distill: pass",
        "what_a_student_cannot_learn_from_is_refused_before_anything_is_written",
    ),
    (
        "--prune-layers, --prune-heads and --prune-neurons",
        "what_a_student_cannot_learn_from_is_refused_before_anything_is_written",
    ),
    (
        "--distill change the same weights",
        "what_a_student_cannot_learn_from_is_refused_before_anything_is_written",
    ),
    (
        "pass --distill or --distill-layers",
        "what_a_student_cannot_learn_from_is_refused_before_anything_is_written",
    ),
    (
        "--distill learns from data",
        "what_a_student_cannot_learn_from_is_refused_before_anything_is_written",
    ),
    (
        "--distill takes small, tiny",
        "what_a_student_cannot_learn_from_is_refused_before_anything_is_written",
    ),
    ("contains a training state: pass --resume", "a_training_goes_on_to_the_same_bits"),
    ("--resume: {} has no training state", "a_training_goes_on_to_the_same_bits"),
    ("--resume needs --checkpoint DIR here", "a_training_stays_until_its_output_is_there"),
    ("the last training state is in {folder}", "a_training_stays_until_its_output_is_there"),
    ("--target applies to", "what_can_not_be_pruned_is_refused_before_anything_is_written"),
    ("nothing to prune: pass", "what_can_not_be_pruned_is_refused_before_anything_is_written"),
    (
        "--calibration can't be combined with dropping layers",
        "calibration_goes_with_rows_of_the_whole_model",
    ),
    ("is given as --config FILE", "merges_in_parts_are_the_files_of_one_process"),
    (
        "--prune-method requires --calibration",
        "sparsegpt_prunes_a_model_as_a_transcription_of_the_paper_does",
    ),
    (
        "--prune-method sparsegpt requires float weights",
        "sparsegpt_prunes_a_model_as_a_transcription_of_the_paper_does",
    ),
    (
        "--calibration ranks the weights of each row",
        "calibration_goes_with_rows_of_the_whole_model",
    ),
    ("--sparse has no effect", "sparse_tensors_come_back_as_they_were"),
    (
        "nothing to factorize: pass",
        "what_can_not_be_factorized_is_refused_before_anything_is_written",
    ),
    (
        "--lowrank needs --rank R",
        "what_can_not_be_factorized_is_refused_before_anything_is_written",
    ),
    (
        "--calibration applies to quantization and pruning",
        "what_can_not_be_factorized_is_refused_before_anything_is_written",
    ),
    (
        "choose one by --precision",
        "models_that_do_not_go_together_are_refused_and_nothing_is_written",
    ),
    (
        "the base model of the others: pass --base",
        "methods_that_compare_models_with_a_base_need_one",
    ),
    (" are quantized, which --dequantize changes", "a_cast_that_changes_nothing_says_so"),
    ("pass --t 0.001", "a_threshold_is_asked_for_and_given"),
    ("pass --models-dir", "hostile_configurations_are_refused"),
    ("a configuration with --config FILE", "a_configuration_of_slices_makes_a_deeper_model"),
    ("`apr trace A B --diff --interactive`", "two_models_are_compared_step_by_step"),
    ("apr trace --trace-payload", "without_a_terminal_a_screen_says_what_to_use_instead"),
    ("`apr tui A B --compare`", "two_models_are_compared_on_a_screen"),
    (
        "--tools and --template-arg apply to chats: pass --chat or --messages",
        "what_is_no_chat_is_refused",
    ),
    ("the file of --messages has tools of its own: remove --tools", "what_is_no_chat_is_refused"),
    ("--template-arg {name}: values are JSON: write {json}", "what_is_no_chat_is_refused"),
    ("--template-arg {name}: {name} are read from --messages", "what_is_no_chat_is_refused"),
    ("with `apr trace --interactive`, ", "a_prompt_that_is_too_long_leads_to_the_command_for_it"),
    ("; use `{instead} --json`", "without_a_terminal_a_screen_says_what_to_use_instead"),
    ("--timeout SECONDS", "a_longer_timeout_helps_with_a_slow_server"),
    (
        "--file selects another",
        "a_repository_with_several_models_gives_the_one_that_the_rules_choose",
    ),
    ("or allow it with --insecure", "a_public_server_leads_to_no_private_address"),
    ("`apr cache verify` finds all damaged files", "what_the_cache_has_damaged_is_not_imported"),
    (
        "HF_HUB_CACHE and APR_CACHE set other folders, --no-cache silences this",
        "an_import_goes_on_without_a_cache_that_cannot_be_written",
    ),
];

/// Parts of texts that name a command or an option without advice that a test can follow.
const STATEMENTS: &[&str] = &[
    "--include with --exclude",
    // Options that were given, and what they apply to.
    "--precision fp16 of a file with its own graph",
    ", and --exclude-node to w8a8 in ONNX",
    "needs --opset {WITH_CHANNELS} or later",
    // What a grammar ends, and what decides nothing then.
    "which --ignore-eos does not prevent",
    "fewer than the {least} of --min-tokens",
    "--mmproj selects the vision part",
    "this program was built without the page's files",
    "in a clone, `cargo install --locked --profile local",
    "a command is missing: `apr help` lists all",
    "--input NAME=FILE passes an array, an image or audio",
    "The model has no text input. Start with `apr tui",
    // What a simplification does not do.
    "--simplify, --from and --to support {MOST_ENDS}",
    // What a table of a family begins with.
    "A table for --arch-file FILE can start like this",
    // What a merge or a signature does not do.
    "compares no models with a base: drop --base",
    "unverified: the tensors were not read; `apr validate` reads them",
    // What an option says of itself, or of others that it does not go with.
    "has no effect",
    "had no effect",
    "--config names its models",
    "--models-dir applies to merge configurations only",
    "--force applies to --drop and --keep only",
    "--no-special-tokens applies to --tokens with --decode only",
    "has no file that --include and --exclude let through",
    "outside of the folder, is not uploaded: --exclude leaves it out",
    "--calibration rounds weights by their inputs",
    "--sha256 applies to a single file",
    "{groups}; `apr prune --prune-method fisher` drops the least",
    "--want supports one text at a time",
    "--want features can't be combined",
    "--separator applies to generated text",
    "--top applies to labels and ranked documents",
    "--lines applies to text files and pipes",
    "--context applies to extractive question answering",
    "--image needs a single prompt",
    "--word-timestamps, --subtitles and",
    "--subtitles takes one audio file at a time",
    "apply to text generation, which --want does not do",
    "--chat, --messages, --prompt-cache, --cache-type, --batch, --stop, --logprobs, --json-schema,",
    "--tokens: {token} is not in",
    "--template-arg {name} is given twice",
    "--tokens: {id} is not in",
    "are two types for the same tensors",
    "--precision changed the type",
    "--from and --to support models of one graph",
    "inputs of the model kept in addition to --from",
    "--from: ",
    "--to: ",
    "--exclude-op: unknown operator",
    "--exclude-node {} matches no node",
    "--exclude-node keeps it",
    "--calibration-method applies to --quantize w8a8 of ONNX files only",
    "--simplify does not combine with --quantize",
    "--shape: unknown input",
    "--merged applies to ONNX only",
    "--max-tokens: --diff compares at least 1 generated token",
    "--exact has no effect",
    "is not supported in parts: {advice}",
    "same files as one process with --shard-size",
    " works",
    " work",
    "--expires '{text}' is not a time",
    "the graph has no cache without --with-past",
    "--max-drift or --quality-check",
    "parts do not run the model",
    "distillation can't be split: run `apr distill` first",
    "no tensor matches --filter",
    "--expect is for models that answer with text",
    "--from counts tokens, and the model has no tokenizer",
    "--sarif and --sbom can't both be written to standard output",
    // What was asked for, which stays.
    "offline mode (HF_HUB_OFFLINE or --offline)",
    // Parts of texts whose others are followed.
    " or --part ",
    ", or a text with --prompt TEXT",
    "--set KEY=VALUE",
    "--rename OLD=NEW",
    "--add NAME=FILE",
    "more findings; --json lists them",
    "{nodes}; `apr graph` has {}",
    // Limits of the system, of files of more than 8 GiB, and keys that somebody else has.
    "error: E008: out of memory (see",
    "the file is too long to buffer; `apr download` it first",
    "--key is not a key of `apr keygen --for encryption`",
    // For graphs that ONNX has no operators for in this version; which others do is not known.
    "another --opset or --precision may help",
    "--pooling, --prompt-name and --dimensions apply to embeddings of texts",
    // Causes and remedies of a whole class of errors; each error of it names what helps.
    "a low --max-memory or APR_RAM_LIMIT",
    "a low --max-work",
    "Set a family of the same architecture with --arch NAME.",
    "Define the family in a table for --arch-file FILE",
    "see apr run --help",
    "--task NAME leaves out what another task adds",
    "a table of your own (--arch-file FILE) can list under [[graph.unused]] tensors that do not \
     affect the outputs",
    "unverified: the bytes of tensors were not read (--front)",
    "tensors are not compared with their checksums (--no-verify)",
    "Generated from the parser of the command line",
];

#[test]
fn every_text_that_names_a_command_or_an_option_is_tested_or_a_statement() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize();
    let crates = &crates.expect("the folder of all");
    let (mut sources, mut tests) = (Vec::new(), String::new());
    for file in rust_files(crates) {
        let text = fs::read_to_string(&file).expect("UTF-8");
        let path = file.strip_prefix(crates).expect("within").display().to_string();
        let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
        let of_tools = ["apr-testkit/", "apr-fuzz-bodies/", "apr-interop/", "/examples/", "/args/"];
        if is_test {
            tests.push_str(&text);
        } else if !of_tools.iter().any(|part| path.contains(part)) {
            sources.push((path, text));
        }
    }

    let followed: Vec<&str> = FOLLOWED.iter().flat_map(|all| all.iter().map(|one| one.2)).collect();
    let elsewhere = ELSEWHERE.iter().map(|(part, _)| *part);
    let known: Vec<&str> =
        followed.into_iter().chain(elsewhere).chain(STATEMENTS.iter().copied()).collect();
    let mut used = vec![false; known.len()];
    let mut unknown = Vec::new();
    for (path, text) in &sources {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let literals = literals(code).map(|literal| options::in_options(&literal));
        for literal in literals.filter(|literal| names_something(literal)) {
            let mut is_known = false;
            for (part, used) in known.iter().zip(&mut used) {
                if agree(&literal, part) {
                    (is_known, *used) = (true, true);
                }
            }
            if !is_known {
                unknown.push(format!("{path}: {literal}"));
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "nothing follows these, nor are they listed as statements:\n{}",
        unknown.join("\n")
    );
    let first = known.len() - ELSEWHERE.len() - STATEMENTS.len();
    let stale: Vec<_> = (first..known.len()).filter(|at| !used[*at]).map(|at| known[at]).collect();
    assert!(stale.is_empty(), "no source says this any more: {stale:?}");
    for (_, test) in ELSEWHERE {
        assert!(tests.contains(&format!("fn {test}(")), "there is no test {test}");
    }
}

/// Words between backquotes in messages of libraries that are no settings.
const NO_SETTINGS: &[&str] = &[
    // Features of builds.
    "audio", "chat", "grammar", "hub", "images", "linalg", "signing", "text", "tui",
    // Programs, and commands that are options nowhere.
    "apr", "gunzip", "tar", "validate", // Keys of a file.
    "messages", // Functions of libraries, in messages to their users.
    "as", "convert", "finish", "to_bytes", "write",
];

#[test]
fn every_setting_that_a_library_names_is_known_to_the_command() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).canonicalize();
    let crates = &crates.expect("the folder of all");
    let of_others = ["/tests/", "tests.rs", "development/", "/examples/", "faces/apr-cli/"];
    let mut unknown = Vec::new();
    for file in rust_files(crates) {
        let path = file.strip_prefix(crates).expect("within").display().to_string();
        let text = fs::read_to_string(&file).expect("UTF-8");
        // What TypeScript is told is in Rust, too.
        if of_others.iter().any(|part| path.contains(part)) || text.contains("typescript_custom") {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        // Texts in several lines are templates, or code that looks like a text.
        for literal in literals(code).filter(|text| !text.contains('\n') && !text.contains("```")) {
            let words = literal.split('`').skip(1).step_by(2);
            let is_name = |word: &&str| {
                let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(plain)
            };
            let is_known = |word: &&str| {
                apr_core::setting::SETTINGS.contains(word) || NO_SETTINGS.contains(word)
            };
            let new = words.filter(is_name).filter(|word| !is_known(word));
            unknown.extend(new.map(|word| format!("{path}: `{word}` in {literal}")));
        }
    }
    assert!(
        unknown.is_empty(),
        "SETTINGS of apr-core lacks, or NO_SETTINGS here:\n{}",
        unknown.join("\n")
    );
}

fn names_something(literal: &str) -> bool {
    // A command's text alone, or an option's name, is no sentence.
    let has_option = literal.match_indices("--").any(|(at, _)| {
        literal[at + 2..].starts_with(|next: char| next.is_ascii_lowercase() || next == '{')
    });
    literal.contains(' ') && (has_option || literal.contains("`apr "))
}

/// Returns `true` if a part belongs to a text, with values in place of the text's placeholders.
fn agree(literal: &str, part: &str) -> bool {
    literal.contains(part)
        || literal.split(['{', '}']).step_by(2).any(|piece| {
            // One begins or ends where the other does.
            let ends = piece.char_indices().map(|(at, _)| &piece[at..]);
            let begins = piece.char_indices().map(|(at, _)| &piece[..at]).chain([piece]);
            ends.filter(|end| part.starts_with(end)).any(names_something)
                || begins.filter(|begin| part.ends_with(begin)).any(names_something)
                || names_something(piece) && part.contains(piece)
        })
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns the string literals of a source, without those in comments. Lines joined by a backslash
/// are one literal.
fn literals(code: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let tail = &rest[at..];
        let len = if tail.starts_with("//") {
            tail.find('\n').unwrap_or(tail.len())
        } else if tail.starts_with('"') {
            let raw = rest[..at].ends_with(['r', '#']) && !rest[..at].ends_with("br\\");
            let len = literal_len(tail, raw);
            let inner = tail.get(1..len - 1).unwrap_or_default();
            let joined = inner.split("\\\n").map(str::trim_start).collect::<String>();
            found.push(joined.replace("\\\"", "\""));
            len
        } else if let Some(inner) = tail.strip_prefix('\'') {
            // A character, or a lifetime.
            let skip = usize::from(inner.starts_with('\\'));
            let next = inner.chars().nth(skip).map_or(0, char::len_utf8);
            if inner[skip + next..].starts_with('\'') { 2 + skip + next } else { 1 }
        } else {
            1
        };
        rest = &tail[len..];
    }
    found.into_iter()
}

fn literal_len(tail: &str, raw: bool) -> usize {
    let mut escaped = false;
    for (at, byte) in tail.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return at + 1,
            b'\\' if !raw => escaped = !escaped,
            _ => escaped = false,
        }
    }
    tail.len()
}
