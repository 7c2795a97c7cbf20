"""Texts written for this project, on which models are run while they are exported.

`PROMPTS`: a quantised graph is compared with the float one on these. `EVERYDAY_TEXTS`: what inputs
carry is measured on these (`importance.py`); none of them is a prompt, or the comparison would
flatter.
"""

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

EVERYDAY_TEXTS = (
    "The committee met on Tuesday to discuss the new library. Several members argued that the old "
    "building could be repaired for less money, but the architect showed photographs of cracks in "
    "the north wall and said that the roof would not survive another winter.",
    "import os\n\n\ndef find_files(folder, suffix):\n    found = []\n"
    "    for name in sorted(os.listdir(folder)):\n        path = os.path.join(folder, name)\n"
    "        if os.path.isdir(path):\n            found.extend(find_files(path, suffix))\n"
    "        elif name.endswith(suffix):\n            found.append(path)\n    return found\n",
    "User: What is the capital of Australia?\nAssistant: The capital of Australia is Canberra. It "
    "was chosen in 1908 as a compromise between Sydney and Melbourne, the two largest cities.\n"
    "User: And of Canada?\nAssistant: The capital of Canada is Ottawa.",
    "A train leaves the station at 9:15 and travels 180 kilometres at 60 kilometres per hour. It "
    "stops for 20 minutes and returns at 90 kilometres per hour. First we compute the time of the "
    "first leg: 180 / 60 = 3 hours. The second leg takes 180 / 90 = 2 hours.",
    "static int count_words(const char *text) {\n    int words = 0, inside = 0;\n"
    "    for (; *text != '\\0'; text++) {\n        if (isspace((unsigned char)*text)) {\n"
    "            inside = 0;\n        } else if (!inside) {\n            inside = 1;\n"
    "            words++;\n        }\n    }\n    return words;\n}\n",
    '{"order": 1042, "customer": {"name": "Amina Diallo", "city": "Lyon"}, "items": [{"sku": '
    '"LAMP-07", "count": 2, "price": 19.5}, {"sku": "CABLE-3M", "count": 1, "price": 4.25}]}\n'
    "SELECT city, SUM(price * count) AS total FROM items GROUP BY city ORDER BY total DESC;",
    "To repot a houseplant, choose a pot slightly larger than the old one. 1. Water the plant the "
    "day before. 2. Loosen the roots gently. 3. Fill the new pot with fresh soil, and press it "
    "down lightly. Do not fertilise for the first four weeks.",
    "Der Zug nach Hamburg fährt heute von Gleis sieben ab. Reisende mit Fahrrädern werden gebeten, "
    "in den letzten Wagen einzusteigen, weil der vordere Zugteil in Hannover abgekuppelt wird.",
    "La bibliothèque municipale ouvre ses portes à dix heures. Les enfants peuvent emprunter cinq "
    "livres; los libros se devuelven en tres semanas, o se renuevan por teléfono.",
    "明天上午九点我们在图书馆门口见面,然后一起坐地铁去博物馆。如果下雨,请带一把伞。"
    "駅の前に新しいパン屋ができて、毎朝いい匂いがします。",
    "Вчера вечером мы долго гуляли по набережной и потом зашли в маленькое кафе, где играла "
    "тихая музыка. Сегодня снова идёт дождь.",
    "Why do leaves change colour in autumn? As days grow shorter, trees stop making chlorophyll, "
    "and the yellow and orange pigments that were there all along become visible. Red is made "
    "anew, from sugars that are trapped in the leaf when nights turn cold.",
)
