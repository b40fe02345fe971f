"""In which types graphs hold weights, and keys and values, so that a device takes less memory and time for them."""

from collections.abc import Iterable

import openvino as ov
from openvino import opset13


def keep_in_bfloat16(model: ov.Model) -> None:
    """Have a cross-KV graph or a decoder hold keys and values in bfloat16, and multiply with them in it.

    All else stays in float32. A key has the same bits in the call that computes it and in those that find it cached, so
    that tokens in a block get the logits that they get one by one.
    """
    for parameter in model.get_parameters():
        old = parameter.output(0)
        if "key_values." in old.get_any_name():
            new = opset13.parameter(parameter.get_output_partial_shape(0), ov.Type.bf16)
            new.output(0).set_names(old.get_names())
            new.set_friendly_name(parameter.get_friendly_name())
            _multiply_with(new.output(0), old)
            model.replace_parameter(model.get_parameter_index(parameter), new)
    for result in model.get_results():
        if "key_values." in result.output(0).get_any_name():
            old = result.input(0).get_source_output()
            users = old.get_target_inputs()
            _multiply_with(opset13.convert(old, "bf16").output(0), old, users)
    model.validate_nodes_and_infer_types()


def _multiply_with(new: ov.Output, old: ov.Output, users: Iterable[ov.Input] | None = None) -> None:
    """Put a bfloat16 output in the place of a float32 one that is the second factor of products."""
    for user in users or old.get_target_inputs():
        node = user.get_node()
        if node.get_type_name() != "MatMul":
            user.replace_source_output(new)
            continue
        query = opset13.convert(node.input(0).get_source_output(), "bf16")
        how = node.get_attributes()
        product = opset13.matmul(query, new, how["transpose_a"], how["transpose_b"])
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(opset13.convert(product, "f32").output(0))


def mark_half_weights(model: ov.Model) -> None:
    """Say of float16 weights that they are such for their size alone.

    Otherwise the CPU unpacks them to float32, repacks that, and keeps both: a third more memory.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Convert":
            continue
        weight = node.input(0).get_source_output().get_node()
        consumers = {target.get_node().get_type_name() for target in node.output(0).get_target_inputs()}
        # Scales of compressed integers are float16 too, and belong to a pattern that must stay as it is.
        half = weight.get_type_name() == "Constant" and weight.get_element_type() == ov.Type.f16
        if half and not consumers & {"Multiply", "Subtract"}:
            node.get_rt_info()["decompression_0"] = ""
