"""The texts on which a quantised graph is compared with the float one: written for this project."""

PROMPTS = (
    "def running_mean(values, width):\n"
    '    """Return the mean of every window of `width` neighbours."""\n'
    "    total = sum(values[:width])\n"
    "    means = [total / width]\n"
    "    for old, new in zip(values, values[width:]):\n",
    "The ferry left the harbour a little after six, when the fog had lifted from the "
    "breakwater and the gulls were following the fishing boats home. On deck, an old teacher "
    "was marking essays about the sea, which most of her pupils had never crossed.",
    "Question: A bakery sells 24 rolls in the morning and twice as many in the afternoon. Each "
    "roll costs 35 cents. How much does it earn on that day?\nAnswer: In the afternoon it sells",
    "Dear Ms. Okafor,\n\nthank you for your letter of 3 May. We have checked the meter in your "
    "flat and found that it counts correctly. Please find attached the bill for the last quarter",
    "Photosynthesis turns light into chemical energy. In the first stage, chlorophyll in the "
    "leaves absorbs light and splits water, which releases oxygen; in the second stage, the plant",
)
