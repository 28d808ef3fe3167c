//! Biases and normalization.

use apr_graph::{ElementType, Node};
use apr_lower::{Order, Writer};

use super::Lowering;

impl Lowering<'_> {
    pub(super) fn normalization(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "BiasAdd" => self.bias_add(node),
            "LRN" => self.local_response(node),
            _ => self.moving(node),
        }
    }

    fn bias_add(&mut self, node: &Node) -> Option<()> {
        if node.text("data_format").unwrap_or("NHWC") == "NCHW" {
            // Channels are the second dimension, as in the other order.
            let rank = self.rank(node, 0)?;
            let bias = self.source(node, 1)?.clone();
            let ids = [self.natural(node, 0)?, self.written(&bias, Order::ChannelsFirst, rank)?];
            return self.plain(node, "Add", &ids);
        }
        let (ids, order, name) = self.in_one_order(node, &[0, 1])?;
        let y = self.out.main.op("Add", ids).output(&name);
        self.set(node, y, order)
    }

    /// Lowers a normalization whose means and variances are inputs.
    fn moving(&mut self, node: &Node) -> Option<()> {
        (node.int("is_training") == Some(0)).then_some(())?;
        let (x, order) = self.image_input(node, 0)?;
        let mut inputs = vec![x];
        for input in 1..5 {
            (self.element(node, input)? == ElementType::F32).then_some(())?;
            inputs.push(self.natural(node, input)?);
        }
        let (_, name) = self.output(node)?;
        let name = Writer::name_in(&name, order, 4);
        let made = self.out.main.op("BatchNormalization", inputs);
        let epsilon = node.float("epsilon").unwrap_or(1e-4);
        let y = made.attribute("epsilon", epsilon).output(&name);
        self.set(node, y, order)
    }

    /// Lowers a normalization by the sum over neighbouring channels.
    ///
    /// ONNX divides the sum by their number.
    fn local_response(&mut self, node: &Node) -> Option<()> {
        let radius = node.int("depth_radius").unwrap_or(5);
        let size = radius.checked_mul(2)?.checked_add(1)?;
        let (x, order) = self.image_input(node, 0)?;
        let (_, name) = self.output(node)?;
        let name = Writer::name_in(&name, order, 4);
        #[expect(clippy::cast_precision_loss, reason = "a few channels")]
        let alpha = node.float("alpha").unwrap_or(1.0) * size as f32;
        let made = self.out.main.op("LRN", [x]).attribute("size", size);
        let made = made
            .attribute("alpha", alpha)
            .attribute("beta", node.float("beta").unwrap_or(0.5))
            .attribute("bias", node.float("bias").unwrap_or(1.0));
        let y = made.output(&name);
        self.set(node, y, order)
    }
}
