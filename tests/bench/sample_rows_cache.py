"""Rows of paged caches."""

FLOATS = "FLOAT;FLOAT;FLOAT;FLOAT;INT64;FLOAT;FLOAT"
HALVES = "BF16;BF16;BF16;BF16;INT64;BF16;BF16"

ROWS = {
    "ReshapeAndCacheNdKernel": (
        "5,2,6;5,2,6;7,4,2,6;7,4,2,6;5 | FLOAT;FLOAT;FLOAT;FLOAT;INT32 -> 7,4,2,6;7,4,2,6 | FLOAT;FLOAT",
        "9,1,128;9,1,128;35,64,1,128;35,64,1,128;9 | BF16;BF16;BF16;BF16;INT32 -> 35,64,1,128;35,64,1,128 | BF16;BF16",
        "28,1,8;28,1,5;7,4,1,8;7,4,1,5;28 | FLOAT16;INT8;FLOAT16;INT8;INT64 -> 7,4,1,8;7,4,1,5 | FLOAT16;INT8",
    ),
    # 12 slots, where nothing is quantized; the last two outputs are there in prefill.
    "KvRmsNormRopeCache": tuple(
        f"{inputs} | {dtypes} -> {outputs} | {';'.join([dtypes[: dtypes.index(';')]] * (outputs.count(';') + 1))}"
        for inputs, dtypes, outputs in (
            ("5,1,3,20;14;5,1,3,6;5,1,3,6;15;7,4,1,6;7,4,1,14", FLOATS, "7,4,1,6;7,4,1,14;5,1,3,6;5,1,3,14"),
            ("16,1,1,576;512;16,1,1,64;16,1,1,64;16;9,128,1,64;9,128,1,512;;;;;", HALVES, "9,128,1,64;9,128,1,512;;"),
            ("5,1,3,20;14;5,1,1,6;5,1,1,6;15;7,4,1,6;7,4,1,14", HALVES, "7,4,1,6;7,4,1,14"),
            ("5,1,3,20;14;5,1,3,6;5,1,3,6;15;7,4,1,6;7,4,1,14;;;;;", f"{FLOATS};FLOAT;;;;FLOAT", "7,4,1,6;7,4,1,14"),
        )
    ),
    "PagedCacheLoadNdKernel": (
        "7,4,2,6;7,4,2,5;3,4;3 | FLOAT;FLOAT;INT32;INT32 -> 17,2,6;17,2,5 | FLOAT;FLOAT",
        "9,64,1,8;9,64,1,4;2,9;2;90,1,8;90,1,4;2 | INT8;INT8;INT32;INT32;INT8;INT8;INT32 -> 90,1,8;90,1,4 | INT8;INT8",
        "7,4,2,6;7,4,2,5;3,4;4;17,2,6;17,2,5 | BF16;BF16;INT32;INT32;BF16;BF16 -> 17,2,6;17,2,5 | BF16;BF16",
        "7,4,2,6;7,4,2,6;3,1;3 | FLOAT;FLOAT;INT32;INT32 -> 2,2,6;2,2,6 | FLOAT;FLOAT",
    ),
}
