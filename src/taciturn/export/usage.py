"""A few lines beside an export that show how to use it; a test runs them as they are written."""

import json
from string import Template

from taciturn.data.vocabulary import Vocabulary

FILE_NAME = "usage.md"

_ONNX = Template("""\
# How to use this model

`pip install onnxruntime numpy`, and in this folder:

```python
import numpy as np, onnxruntime

words = open("vocabulary.txt", encoding="utf-8").read().split("\\n")
session = onnxruntime.InferenceSession("$file")
inputs = [each for each in session.get_inputs() if each.name != "word"]
state = {each.name: np.zeros((1, each.shape[1]), np.float32) for each in inputs}
for word in $read:
    best, _, _, *after = session.run(None, {"word": np.array([words.index(word)]), **state})
    state = dict(zip(state, after))
print([words[place] for place in best[0]])
```

It prints the ten words that are likeliest after “$text”. Words are in lower case, and one that is
not in vocabulary.txt is read as `<unk>`. After an id that the metadata list under `restarts`, begin
again with zeros and `<bos>`. guarantee.txt says whom the model protects, and goes with it.
""")

_JAVASCRIPT = Template("""\
# How to use this model

With Node.js, in this folder:

```js
const predictor = require("./model.js").predictor();
console.log(predictor.predict($text).words);
```

It prints what a keyboard suggests behind that text. In a page:

```html
<script src="model.js"></script>
<script>const predictor = taciturn.models[$name].predictor();</script>
```

Call `predictor.forget()` when a message is sent. guarantee.txt says whom the model protects, and
goes with it.
""")


def write_onnx_usage(file: str, vocabulary: Vocabulary) -> str:
    """Return how a graph is used.

    Args:
        file: its name, in the same folder as vocabulary.txt.
        vocabulary: the words of the model.
    """
    context = _choose_words(vocabulary)
    read = json.dumps(["<bos>", *context], ensure_ascii=False)
    return _ONNX.substitute(file=file, read=read, text=" ".join(context))


def write_javascript_usage(name: str, vocabulary: Vocabulary) -> str:
    """Return how a script is used.

    Args:
        name: that pages know the model by.
        vocabulary: the words of the model.
    """
    text = " ".join([*_choose_words(vocabulary), ""])
    return _JAVASCRIPT.substitute(name=_write_string(name), text=_write_string(text))


def _write_string(text: str) -> str:
    """Return text as a string that ends no script, whatever it says."""
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c")


def _choose_words(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Return two words that the model surely knows: its first ones."""
    first = vocabulary.first_word
    return vocabulary.words[first : first + 2]
