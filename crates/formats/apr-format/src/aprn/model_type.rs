//! The catalogue of models (`docs/format/older.md`, B).

use core::fmt;

macro_rules! model_types {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal;)*) => {
        /// Type of the model in a payload.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ModelType { $($(#[$doc])* $variant,)* }

        impl ModelType {
            /// Every type, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the number in the header.
            #[must_use]
            pub const fn code(self) -> u16 {
                match self { $(Self::$variant => $code,)* }
            }

            /// Returns the type with this number in the header.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }

            /// Returns the lower-case name: `linear_regression`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

model_types! {
    /// Least squares, ridge, lasso.
    LinearRegression = 0x0001, "linear_regression";
    /// Binomial generalized linear model.
    LogisticRegression = 0x0002, "logistic_regression";
    /// CART, ID3.
    DecisionTree = 0x0003, "decision_tree";
    /// Bagged trees.
    RandomForest = 0x0004, "random_forest";
    /// Boosted trees.
    GradientBoosting = 0x0005, "gradient_boosting";
    /// Lloyd's algorithm.
    KMeans = 0x0006, "kmeans";
    /// Principal components.
    Pca = 0x0007, "pca";
    /// Gaussian naive Bayes.
    NaiveBayes = 0x0008, "naive_bayes";
    /// Nearest neighbours.
    Knn = 0x0009, "knn";
    /// Support vector machine.
    Svm = 0x000A, "svm";
    /// Markov chain over n-grams.
    NgramLm = 0x0010, "ngram_lm";
    /// TF-IDF vectorizer.
    Tfidf = 0x0011, "tfidf";
    /// Bag of words.
    CountVectorizer = 0x0012, "count_vectorizer";
    /// Feed-forward network.
    NeuralSequential = 0x0020, "neural_sequential";
    /// Network of the user's own architecture.
    NeuralCustom = 0x0021, "neural_custom";
    /// Content-based filtering.
    ContentRecommender = 0x0030, "content_recommender";
    /// Mixture of experts.
    MixtureOfExperts = 0x0040, "mixture_of_experts";
    /// Anything else.
    Custom = 0x00FF, "custom";
}

impl fmt::Display for ModelType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_leads_back_to_its_type_and_no_other_does() {
        for &kind in ModelType::ALL {
            assert_eq!(ModelType::from_code(kind.code()), Some(kind));
        }
        let known = (0..=u16::MAX).filter(|&code| ModelType::from_code(code).is_some()).count();
        assert_eq!(known, ModelType::ALL.len());
    }
}
