use apr_core::DType;
use serde_json::json;

use super::*;
use crate::model::Mismatch;

fn llama_tensors() -> Vec<TensorInfo> {
    let families = Families::builtin();
    let llama = families.find("llama").expect("built in");
    let naming = llama.default_naming(HUGGING_FACE).expect("a naming");
    let names = llama.example_names().filter_map(|name| llama.source_name(&name, &naming));
    names.map(|name| TensorInfo { name, dtype: DType::F32, shape: [4, 4].into() }).collect()
}

fn identified(metadata: &serde_json::Value) -> Option<(String, bool)> {
    let metadata = Metadata::from(metadata.as_object().cloned().unwrap_or_default());
    let families = Families::builtin();
    let model = families.identify(&llama_tensors(), &metadata)?;
    Some((model.family().name().to_owned(), model.is_guessed()))
}

#[test]
fn a_model_type_of_no_table_is_unknown_whatever_its_tensors_are_called() {
    for stranger in ["zamba2", "plamo", "xlstm", "longcat_flash", "rwkv", "dbrx"] {
        assert_eq!(identified(&json!({ "model_type": stranger })), None, "{stranger}");
        // The class of a known family makes the model none.
        let architecture = json!({ "architectures": ["LlamaForCausalLM"] });
        assert_eq!(
            identified(&json!({ "model_type": stranger, "architecture": architecture })),
            None
        );
    }
    assert_eq!(
        identified(&json!({ "architecture": { "architectures": ["DbrxForCausalLM"] } })),
        None
    );
}

/// Uses names from torch 2.15's exporter, for a model of two layers.
#[test]
fn values_computed_by_an_exporter_do_not_affect_the_family() {
    let families = Families::builtin();
    let guessed = |values: &[&str]| {
        let value = |name: &&str| TensorInfo {
            name: (*name).to_owned(),
            dtype: DType::F32,
            shape: [1, 1, 7, 7].into(),
        };
        let mut tensors = llama_tensors();
        tensors.extend(values.iter().map(value));
        let metadata = Metadata::default();
        let model = families.identify(&tensors, &metadata);
        model.map(|model| model.family().name().to_owned())
    };
    let llama = Some("llama".to_owned());
    assert_eq!(guessed(&["where", "unsqueeze_14", "unsqueeze_15"]), llama);
    assert_eq!(guessed(&["/embeddings/Constant_2_output_0", "/a.0/Constant_output_0"]), llama);
    assert_eq!(guessed(&["net.a", "net.b", "net.c"]), None, "modules of another model");
}

#[test]
fn a_known_model_type_or_class_decides_and_names_alone_are_a_guess() {
    let told = Some(("llama".to_owned(), false));
    assert_eq!(identified(&json!({ "model_type": "llama" })), told);
    for none in ["", "unknown", "Auto"] {
        let architecture = json!({ "architectures": ["LlamaForCausalLM"] });
        assert_eq!(identified(&json!({ "model_type": none, "architecture": architecture })), told);
    }
    let guessed = Some(("llama".to_owned(), true));
    assert_eq!(identified(&json!({})), guessed);
    assert_eq!(identified(&json!({ "architecture": { "hidden_size": 4 } })), guessed);
}

#[test]
fn no_family_is_passed_over_whose_names_they_are() {
    for table in tables() {
        let family = table.family();
        for naming in family.namings() {
            let names =
                family.example_names().filter_map(|name| family.source_name(&name, &naming));
            let tensors: Vec<TensorInfo> = names
                .map(|name| TensorInfo { name, dtype: DType::F32, shape: [4].into() })
                .collect();
            let groups = NameGroups::of(&tensors);
            assert!(
                groups.may_be_of(tensors.len(), |word| table.has_word(word)),
                "{} {naming:?}",
                family.name()
            );
        }
    }
}

#[test]
fn tables_that_contain_none_of_the_names_words_are_not_parsed() {
    let tensors = llama_tensors();
    let groups = NameGroups::of(&tensors);
    let whisper = tables().iter().find(|table| table.name() == "whisper").expect("built in");
    assert!(!groups.may_be_of(least(GUESSED, tensors.len()), |word| whisper.has_word(word)));
}

#[test]
fn an_added_image_table_is_found_by_its_models_and_is_not_tried_as_a_family() {
    let mut families = Families::builtin();
    let table = "name = 'mine'\ntitle = 'Mine'\nextends = 'llava_vision'\nvision_of = ['seer']";
    families.add(table).expect("a part");
    assert_eq!(families.brought().count(), 0);
    assert!(families.iter().all(|family| family.name() != "mine"));
    assert!(families.find("mine").is_some_and(Family::is_for_images));
    let mut tensors = llama_tensors();
    let name = "multi_modal_projector.linear_1.weight".to_owned();
    tensors.push(TensorInfo { name, dtype: DType::F32, shape: [4, 4].into() });
    let config = json!({ "text_config": { "model_type": "llama" }, "vision_config": {} });
    let metadata = json!({ "model_type": "seer", "architecture": config });
    let metadata = Metadata::from(metadata.as_object().cloned().unwrap_or_default());
    let model = families.identify(&tensors, &metadata).expect("a LLaMA");
    assert_eq!(model.family().name(), "llama");
    assert_eq!(model.vision().map(|part| part.family().name()), Some("mine"));
}

#[test]
fn an_added_family_is_not_built_in() {
    let mut families = Families::builtin();
    let table = "name = 'mine'\ntitle = 'Mine'\nmodel_types = ['mine']\nextends = 'llama'";
    families.add(table).expect("a family");
    assert!(!Families::is_builtin(families.find("mine").expect("just added")));
    assert!(Families::is_builtin(families.find("llama").expect("built in")));
}

/// Classes of `transformers` and the `model_type` of their configurations.
#[test]
fn classes_are_of_their_families() {
    let families = Families::builtin();
    for (class, family) in [
        ("BertModel", "bert"),
        ("CLIPTextModelWithProjection", "clip"),
        ("CLIPModel", "clip"),
        ("DistilBertForSequenceClassification", "distilbert"),
        ("GPT2LMHeadModel", "gpt2"),
        ("GPTNeoXForCausalLM", "gpt_neox"),
        ("Gemma3ForConditionalGeneration", "gemma3"),
        ("DebertaV2Model", "deberta_v2"),
        ("MBartForConditionalGeneration", "mbart"),
        ("MT5ForConditionalGeneration", "t5"),
        ("MarianMTModel", "marian"),
        ("NomicBertModel", "nomic_bert"),
        ("OPTForCausalLM", "opt"),
        ("Qwen2MoeForCausalLM", "qwen2_moe"),
        ("T5EncoderModel", "t5"),
        ("ViTForImageClassification", "vit"),
        ("Wav2Vec2ForCTC", "wav2vec2"),
        ("XLMRobertaModel", "roberta"),
    ] {
        assert_eq!(families.of_class(class).map(Family::name), Some(family), "{class}");
    }
    for class in ["DbrxForCausalLM", "NeoBertModel", "ForCausalLM", "Model", ""] {
        assert!(families.of_class(class).is_none(), "{class}");
    }
}

/// Returns the canonical name of each tensor of an encoder that was exported alone, and two
/// counts.
///
/// The counts are the missing tensors of other parts and of the encoder itself.
fn of_encoder(family: &str, names: &[&str]) -> (Vec<Option<String>>, [usize; 2]) {
    let named =
        |name: &&str| TensorInfo { name: (*name).to_owned(), dtype: DType::F32, shape: [4].into() };
    let tensors: Vec<TensorInfo> = names.iter().map(named).collect();
    let config = json!({ "encoder_layers": 1, "decoder_layers": 1, "num_layers": 1 });
    let metadata = json!({ "model_type": family, "architecture": config });
    let metadata = Metadata::from(metadata.as_object().cloned().unwrap_or_default());
    let families = Families::builtin();
    let model = families.identify(&tensors, &metadata).expect("by its type");
    let canonical = |position| model.canonical(position).map(str::to_owned);
    let is_missing = |it: &Mismatch| matches!(it, Mismatch::Missing { .. });
    let missing = model.mismatches(&tensors).into_iter().filter(is_missing).collect();
    let (others, own) = model.of_other_parts(missing);
    ((0..tensors.len()).map(canonical).collect(), [others.len(), own.len()])
}

#[test]
fn an_encoder_that_was_exported_alone_is_the_encoder_and_lacks_no_decoder() {
    let layer = |norm: &str| {
        let linear = ["self_attn.q_proj", "self_attn.v_proj", "self_attn.out_proj", "fc1"];
        let module = linear.iter().copied().chain(["fc2", "self_attn_layer_norm", norm]);
        module
            .flat_map(|it| [format!("layers.0.{it}.weight"), format!("layers.0.{it}.bias")])
            .chain(["layers.0.self_attn.k_proj.weight".to_owned()])
            .collect::<Vec<_>>()
    };
    let layer = layer("final_layer_norm");
    let mut names: Vec<&str> = layer.iter().map(String::as_str).collect();
    names.extend(["layers.0.self_attn.k_proj.bias", "embed_positions.weight"]);
    names.extend(["layernorm_embedding.weight", "layernorm_embedding.bias"]);
    let (canonical, [others, own]) = of_encoder("bart", &names);
    for name in &canonical {
        assert!(name.as_ref().is_some_and(|it| it.starts_with("encoder.")), "{canonical:?}");
    }
    assert!(others > 20, "{others}");
    assert_eq!(own, 0);

    // A weight of the encoder that is missing is not excused.
    let (_, [_, own]) = of_encoder("bart", &names[1..]);
    assert_eq!(own, 1);
}
