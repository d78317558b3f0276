// What Node is asked of a script, before it is written: its words, and its model's scores at the start of each text and after each word.
const { script, texts } = JSON.parse(require("fs").readFileSync(0, "utf8"));
require("vm").runInThisContext(script);
const [{ model, vocabulary, predictor }] = Object.values(taciturn.models);
predictor().predict("");
console.log(JSON.stringify(vocabulary.words));
const say = (state) => process.stdout.write(Buffer.from(model.scores(state).buffer));
for (const words of texts) {
  let state = model.start();
  say(state);
  for (const word of words) say((state = model.read(state, word)));
}
