"""Dreams: inputs that make a routed model take chosen paths.

objective × parametrisation × transform × loop: what is maximised (``objectives``), what is optimised
(``parametrisation``), how it is disturbed at each iteration (``transforms``), and the loop over them
(``loop``). ``request`` and ``job`` need no torch. Source: Distributed Neural Architectures, section 3.2
and appendix C.
"""
