"""Dreams: inputs optimised to make a routed model take chosen paths.

A dream combines an objective (``objectives``), what is optimised (``parametrisation``), random transforms at each
iteration (``transforms``) and a loop (``image_loop``, ``text_loop``). ``dream_request``, ``dream_title`` and
``settings`` need no torch. Source: "Distributed Neural Architectures", section 3.2 and appendix C.
"""
